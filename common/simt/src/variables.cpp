#include "variables.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "launch.h"

namespace simt::detail {

struct SharedVariables::Symbol {
  uintptr_t value;
  size_t bytes;
  std::string name;
};

namespace {

// Where the running program has been loaded, or false where this code is in a library.
bool loaded_at(uintptr_t& begin) {
  struct Search {
    uintptr_t here, begin;
    bool found;
  } search{reinterpret_cast<uintptr_t>(&loaded_at), 0, false};
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        wanted.begin = module->dlpi_addr;
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const auto& header = module->dlpi_phdr[i];
          const uintptr_t from = module->dlpi_addr + header.p_vaddr;
          if (header.p_type == PT_LOAD && wanted.here - from < header.p_memsz) wanted.found = true;
        }
        return 1;  // the first is the program
      },
      &search);
  begin = search.begin;
  return search.found;
}

// "N4norm6kernelIfEEvPf" of a kernel and of every name that the compiler makes of it, as
// "_ZZN4norm6kernelIfEEvPfE3sum".
std::string without_prefix(const std::string& symbol) {
  if (!symbol.starts_with("_Z")) return "";
  return symbol.substr(std::min(symbol.size(), symbol.find_first_not_of('Z', 1)));
}

constexpr size_t reach_before = 256, reach_behind = 1024, widest_gap = 128;  // bytes

}  // namespace

SharedVariables& SharedVariables::instance() {
  static SharedVariables& variables = *new SharedVariables();
  return variables;
}

// All that a kernel could mean by __shared__: what needs an initialization at run time has a guard, and is none; nor
// are the engine's own.
SharedVariables::SharedVariables() {
  uintptr_t loaded = 0;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  if (!loaded_at(loaded)) return;
  const auto read = [&]<class T>(uint64_t at, size_t count, std::vector<T>& to) {
    to.resize(count);
    file.seekg(static_cast<std::streamoff>(at));
    file.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(count * sizeof(T)));
    return file.good();
  };
  std::vector<Symbol> in_storage;
  std::vector<ElfW(Ehdr)> header;
  std::vector<ElfW(Shdr)> sections;
  if (!read(0, 1, header) || !read(header[0].e_shoff, header[0].e_shnum, sections)) return;
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    std::vector<ElfW(Sym)> symbols;
    std::vector<char> names;
    const auto& strings = sections[section.sh_link];
    if (!read(section.sh_offset, section.sh_size / sizeof(symbols[0]), symbols)) continue;
    if (!read(strings.sh_offset, strings.sh_size, names) || names.empty() || names.back() != '\0') continue;
    for (const auto& symbol : symbols) {
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= names.size()) continue;
      const char* const name = &names[symbol.st_name];
      if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS) in_storage.push_back({symbol.st_value, symbol.st_size, name});
      // As `__global__` asks for (simt/qualifiers.h).
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ELF64_ST_VISIBILITY(symbol.st_other) == STV_PROTECTED) {
        add_kernel(reinterpret_cast<const void*>(loaded + symbol.st_value), name);
      }
    }
  }

  std::set<std::string> guarded;
  for (const Symbol& symbol : in_storage) {
    if (symbol.name.starts_with("_ZGV")) guarded.insert("_Z" + symbol.name.substr(4));
  }
  size_t bytes = 0;
  for (const Symbol& symbol : in_storage) {
    bytes = std::max(bytes, symbol.value + symbol.bytes);
    if (symbol.name.starts_with("_ZGV") || symbol.name.starts_with("_ZN4simt6detail")) continue;
    if (guarded.contains(symbol.name) || symbol.bytes == 0 || variables_.size() == none) continue;
    const std::string whole = demangled(symbol.name);
    const size_t colons = whole.rfind("::");
    variables_.push_back(
        {symbol.value, symbol.bytes, colons == std::string::npos ? whole : whole.substr(colons + 2), symbol.name});
  }
  std::sort(variables_.begin(), variables_.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  of_byte_.assign(bytes, none);
  kernel_of_.assign(variables_.size(), 0);
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    if (variable.symbol == "worklog_dynamic_shared") dynamic_ = static_cast<uint16_t>(i);
    std::fill_n(of_byte_.begin() + static_cast<std::ptrdiff_t>(variable.offset), variable.bytes,
                static_cast<uint16_t>(i));
    const std::string name = without_prefix(variable.symbol);
    for (size_t end = name.find('E'); end != std::string::npos && kernel_of_[i] == 0; end = name.find('E', end + 1)) {
      const auto kernel = by_name_.find(name.substr(0, end));
      if (kernel != by_name_.end()) kernel_of_[i] = kernel->second;
    }
  }
  gap_.assign(bytes, 1);
  for (const Symbol& symbol : in_storage) {
    std::fill_n(gap_.begin() + static_cast<std::ptrdiff_t>(symbol.value), symbol.bytes, 0);
  }
  for (size_t i = 0, wide = widest_gap; i < bytes; ++i) {  // behind a variable of a kernel, and not far
    wide = of_byte_[i] != none && kernel_of_[of_byte_[i]] != 0 ? 0 : gap_[i] ? wide + 1 : widest_gap;
    if (gap_[i] && wide > widest_gap) gap_[i] = 0;
  }
}

uint16_t SharedVariables::before(uintptr_t offset) const {
  uint16_t best = none;
  for (uint16_t i = 0; i < variables_.size() && variables_[i].offset <= offset; ++i) {
    if (at(variables_[i].offset) == i) best = i;
  }
  return best;
}

uint16_t SharedVariables::own_before(uintptr_t offset) const {
  uint16_t best = none;
  for (uint16_t i = 0; i < variables_.size() && variables_[i].offset <= offset; ++i) {
    if (kernel_of_[i] != 0 && kernel_of_[i] == running_) best = i;
  }
  return best;
}

void SharedVariables::add_kernel(const void* kernel, const std::string& symbol) {
  const auto number = static_cast<uint32_t>(numbers_.size() + 1);
  numbers_.emplace(kernel, number);
  const std::string name = without_prefix(symbol);
  if (!name.empty()) by_name_.emplace(name, number);
}

// Of one that the program's symbols do not tell, what stands in it is found now.
uint32_t SharedVariables::number_of(const void* kernel) {
  const auto known = numbers_.find(kernel);
  if (known != numbers_.end()) return known->second;
  const std::string symbol = symbol_of(kernel);
  add_kernel(kernel, symbol);
  const std::string start = without_prefix(symbol) + "E";
  for (size_t i = 0; i < variables_.size() && start.size() > 1; ++i) {
    if (without_prefix(variables_[i].symbol).starts_with(start)) kernel_of_[i] = numbers_[kernel];
  }
  zones_.clear();
  return numbers_[kernel];
}

void SharedVariables::start(const void* kernel) {
  running_ = number_of(kernel);
}

bool SharedVariables::is_free(uintptr_t offset) const {
  const uint16_t number = of_byte_[offset];
  if (number == none) return gap_[offset] != 0;
  return kernel_of_[number] != 0 && kernel_of_[number] != running_;
}

const SharedVariables::Zones* SharedVariables::zones_of_running() {
  const auto [entry, is_new] = zones_.try_emplace(running_);
  if (!is_new) return entry->second;
  Zones* const found = made_.emplace_back(std::make_unique<Zones>()).get();
  entry->second = found;
  std::vector<uint16_t> own;
  for (uint16_t i = 0; i < variables_.size(); ++i) {
    if (kernel_of_[i] != 0 && kernel_of_[i] == running_) own.push_back(i);
  }
  if (own.empty()) return found;
  // Cut where it changes which variable is nearest, and where near ends.
  size_t next = 0;  // of `own`: the first that begins behind the byte
  for (uintptr_t i = 0; i < of_byte_.size(); ++i) {
    while (next < own.size() && variables_[own[next]].offset <= i) ++next;
    if (!is_free(i)) continue;
    const uint16_t beside = own[next == 0 ? 0 : next - 1];
    const bool is_near = (next > 0 && i - variables_[beside].end() < reach_behind) ||
                         (next < own.size() && variables_[own[next]].offset - i <= reach_before);
    const auto add = [&](std::vector<Zone>& to) {
      if (to.empty() || to.back().offset + to.back().bytes != i || to.back().beside != beside) {
        to.push_back({i, 0, beside});
      }
      ++to.back().bytes;
    };
    add(found->all);
    if (is_near) add(found->near);
  }
  return found;
}

}  // namespace simt::detail
