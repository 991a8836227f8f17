#include "variables.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "../src/launch.h"

namespace simt::detail {

namespace {

struct Symbol {
  uintptr_t value;
  size_t bytes;
  std::string name;
};

// The thread-local variables of the running program.
std::vector<Symbol> thread_local_symbols() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto read = [&]<class T>(uint64_t at, size_t count, std::vector<T>& to) {
    to.resize(count);
    file.seekg(static_cast<std::streamoff>(at));
    file.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(count * sizeof(T)));
    return file.good();
  };
  std::vector<Symbol> found;
  std::vector<ElfW(Ehdr)> header;
  std::vector<ElfW(Shdr)> sections;
  if (!read(0, 1, header) || !read(header[0].e_shoff, header[0].e_shnum, sections)) return found;
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    std::vector<ElfW(Sym)> symbols;
    std::vector<char> names;
    const auto& strings = sections[section.sh_link];
    if (!read(section.sh_offset, section.sh_size / sizeof(symbols[0]), symbols)) continue;
    if (!read(strings.sh_offset, strings.sh_size, names) || names.empty() || names.back() != '\0') continue;
    for (const auto& symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS || symbol.st_shndx == SHN_UNDEF) continue;
      if (symbol.st_name < names.size()) found.push_back({symbol.st_value, symbol.st_size, &names[symbol.st_name]});
    }
  }
  return found;
}

}  // namespace

SharedVariables& SharedVariables::instance() {
  static SharedVariables& variables = *new SharedVariables();
  return variables;
}

// All that a kernel could mean by __shared__: what needs an initialization at run time has a guard, and is none; nor
// are the engine's own.
SharedVariables::SharedVariables() {
  const std::vector<Symbol> symbols = thread_local_symbols();
  std::set<std::string> guarded;
  for (const Symbol& symbol : symbols) {
    if (symbol.name.starts_with("_ZGV")) guarded.insert("_Z" + symbol.name.substr(4));
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.name.starts_with("_ZGV") || symbol.name.starts_with("_ZN4simt6detail")) continue;
    if (guarded.contains(symbol.name) || symbol.bytes == 0 || variables_.size() == none) continue;
    const std::string whole = demangled(symbol.name);
    const size_t colons = whole.rfind("::");
    variables_.push_back(
        {symbol.value, symbol.bytes, colons == std::string::npos ? whole : whole.substr(colons + 2), symbol.name});
  }
  std::sort(variables_.begin(), variables_.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  kernel_of_.assign(variables_.size(), 0);
  if (!variables_.empty()) of_byte_.assign(variables_.back().offset + variables_.back().bytes, none);
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    if (variable.symbol == "worklog_dynamic_shared") dynamic_ = static_cast<uint16_t>(i);
    of_byte_.resize(std::max(of_byte_.size(), variable.offset + variable.bytes), none);
    std::fill_n(of_byte_.begin() + static_cast<std::ptrdiff_t>(variable.offset), variable.bytes,
                static_cast<uint16_t>(i));
  }
}

uint16_t SharedVariables::before(uintptr_t offset) const {
  uint16_t best = none;
  for (uint16_t i = 0; i < variables_.size() && variables_[i].offset <= offset; ++i) {
    if (at(variables_[i].offset) == i) best = i;
  }
  return best;
}

void SharedVariables::start(const void* kernel) {
  const auto known = std::find(kernels_.begin(), kernels_.end(), kernel);
  running_ = static_cast<uint32_t>(known - kernels_.begin()) + 1;
  if (known != kernels_.end()) return;
  kernels_.push_back(kernel);
  const std::string symbol = symbol_of(kernel);
  if (!symbol.starts_with("_Z")) return;
  const std::string start = "_ZZ" + symbol.substr(2) + "E";
  for (size_t i = 0; i < variables_.size(); ++i) {
    if (variables_[i].symbol.starts_with(start)) kernel_of_[i] = running_;
  }
}

}  // namespace simt::detail
