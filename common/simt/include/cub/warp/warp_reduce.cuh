// CUB has this in a header of its own, too.
#pragma once

#include "cub/cub.cuh"
