// Memory of the host for tensors of gigabytes.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace worklog {

// Huge pages for these bytes, where the system has some.
void prefer_huge_pages(void* data, size_t bytes);

// For vectors whose new elements are left unset. One thread would write the zeros, with a page fault at every 4 KiB,
// and all of them are overwritten at once. The threads that fill a tensor share the faults, and huge pages make them
// few.
template <class T>
struct UnsetAllocator {
  using value_type = T;

  UnsetAllocator() = default;
  template <class U>
  UnsetAllocator(const UnsetAllocator<U>&) noexcept {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < large) return static_cast<T*>(::operator new(bytes));
    void* const data = ::operator new (bytes, std::align_val_t{huge_page});
    prefer_huge_pages(data, bytes);
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t count) noexcept {
    if (count * sizeof(T) < large) {
      ::operator delete(data);
    } else {
      ::operator delete (data, std::align_val_t{huge_page});
    }
  }

  void construct(T* element) noexcept { ::new (static_cast<void*>(element)) T; }
  template <class... Args>
  void construct(T* element, Args&&... args) {
    ::new (static_cast<void*>(element)) T(static_cast<Args&&>(args)...);
  }

  friend bool operator==(const UnsetAllocator&, const UnsetAllocator&) { return true; }

 private:
  static constexpr size_t huge_page = size_t{2} << 20;
  static constexpr size_t large = 4 * huge_page;
};

using HostBytes = std::vector<std::byte, UnsetAllocator<std::byte>>;

}  // namespace worklog
