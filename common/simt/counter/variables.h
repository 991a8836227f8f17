// The __shared__ variables of the program: where each lies in the thread-local storage, from the program's symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt::detail {

class SharedVariables {
 public:
  struct Variable {
    uintptr_t offset = 0;  // in the thread-local storage
    size_t bytes = 0;
    std::string name;    // without the function that it stands in
    std::string symbol;  // as compilers write it
  };
  static constexpr uint16_t none = 0xffff;

  // Of the process. Empty where the program has no symbols: then nothing is known.
  static SharedVariables& instance();

  bool is_known() const { return !variables_.empty(); }
  const Variable& operator[](uint16_t number) const { return variables_[number]; }
  // The variable that a byte of the storage belongs to, as the running kernel may use it; or none.
  uint16_t at(uintptr_t offset) const {
    const uint16_t number = offset < of_byte_.size() ? of_byte_[offset] : none;
    return number == none || (kernel_of_[number] != 0 && kernel_of_[number] != running_) ? none : number;
  }
  // The variable that an address which belongs to none is most likely meant to be in: the last one before it.
  uint16_t before(uintptr_t offset) const;
  uint16_t dynamic() const { return dynamic_; }

  // Between launches: from now on, what stands in this kernel is its own.
  void start(const void* kernel);

 private:
  SharedVariables();

  std::vector<Variable> variables_;
  std::vector<uint16_t> of_byte_;
  std::vector<uint32_t> kernel_of_;  // of each variable, by the number below; 0: of no kernel that has run yet
  std::vector<const void*> kernels_;
  uint32_t running_ = 0;
  uint16_t dynamic_ = none;
};

}  // namespace simt::detail
