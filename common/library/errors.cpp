#include "common/library/errors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "common/device/launch.cuh"

namespace worklog::library {
namespace {

// Of a fixed size, so that to keep a sentence cannot fail.
thread_local std::array<char, 1024> sentence_of_thread = {};

nw_status keep(nw_status status, std::string_view sentence) noexcept {
  const size_t length = std::min(sentence.size(), sentence_of_thread.size() - 1);
  std::memcpy(sentence_of_thread.data(), sentence.data(), length);
  sentence_of_thread[length] = '\0';
  return status;
}

nw_status status_of(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
      return NW_ERROR_NO_DEVICE;
    case cudaErrorMemoryAllocation:
      return NW_ERROR_OUT_OF_MEMORY;
    default:
      return NW_ERROR_CUDA;
  }
}

}  // namespace

nw_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Refusal& refusal) {
    return keep(refusal.status, refusal.what());
  } catch (const CudaError& error) {
    return keep(status_of(error.code), error.what());
  } catch (const std::invalid_argument& error) {  // what a stage's function says of its arguments
    return keep(NW_ERROR_SHAPE, error.what());
  } catch (const std::bad_alloc&) {
    return keep(NW_ERROR_OUT_OF_MEMORY, "host memory is exhausted");
  } catch (const std::exception& error) {
    return keep(NW_ERROR_INTERNAL, error.what());
  } catch (...) {
    return keep(NW_ERROR_INTERNAL, "an exception of unknown type");
  }
}

const char* last_sentence() noexcept {
  return sentence_of_thread.data();
}

}  // namespace worklog::library
