// The __shared__ variables of the program: where each lies in the thread-local storage, and which kernel it is of. From
// the program's symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace simt::detail {

class SharedVariables {
 public:
  struct Variable {
    uintptr_t offset = 0;  // in the thread-local storage
    size_t bytes = 0;
    std::string name;    // without the function that it stands in
    std::string symbol;  // as compilers write it
    uintptr_t end() const { return offset + bytes; }
  };
  static constexpr uint16_t none = 0xffff;

  // A part of the storage that a kernel has no business in: alignment gaps, and variables of other kernels.
  struct Zone {
    uintptr_t offset = 0;
    size_t bytes = 0;
    uint16_t beside = none;  // the variable of the kernel that it follows; of the zones before the first, that one
  };
  struct Zones {
    std::vector<Zone> near;  // to the kernel's own variables: few bytes, looked at after each block
    std::vector<Zone> all;   // looked at after each launch
  };

  // Of the process. Empty where the program has no symbols, or where this layer is in a library: then nothing is known.
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
  // The same of the running kernel's own variables.
  uint16_t own_before(uintptr_t offset) const;
  uint16_t dynamic() const { return dynamic_; }

  // Between launches: from now on, what stands in this kernel is its own.
  void start(const void* kernel);
  const Zones* zones_of_running();

 private:
  struct Symbol;

  SharedVariables();
  uint32_t number_of(const void* kernel);
  void add_kernel(const void* kernel, const std::string& symbol);
  bool is_free(uintptr_t offset) const;

  std::vector<Variable> variables_;
  std::vector<uint16_t> of_byte_;
  std::vector<uint32_t> kernel_of_;  // of each variable, by the number below; 0: of no kernel
  std::vector<uint8_t> gap_;         // by byte: belongs to nobody, right behind a variable
  std::unordered_map<const void*, uint32_t> numbers_;
  std::unordered_map<std::string, uint32_t> by_name_;
  std::map<uint32_t, const Zones*> zones_;    // of kernels, by number
  std::vector<std::unique_ptr<Zones>> made_;  // all that there were: OS threads go by where they are
  uint32_t running_ = 0;
  uint16_t dynamic_ = none;
};

}  // namespace simt::detail
