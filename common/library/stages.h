// The stages' programs, which the library takes its variants from (NN/variants.cu).
#pragma once

#include "common/harness/program.h"

namespace worklog {
namespace naive {
Program program();
}
namespace shared_reduction {
Program program();
}
namespace warp_shuffle {
Program program();
}
namespace vectorized {
Program program();
}
namespace welford {
Program program();
}
namespace fused_residual {
Program program();
}
namespace backward {
Program program();
}
namespace batchnorm {
Program program();
}
}  // namespace worklog
