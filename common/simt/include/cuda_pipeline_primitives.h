// The same functions under the Toolkit's other header.
#pragma once

#include "cuda_pipeline.h"
