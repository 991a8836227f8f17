// The runtime API without the words of device code.
#pragma once

#include "cuda_runtime.h"
