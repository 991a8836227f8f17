// See simt_types_probes.h. PROBES names the function that this file defines.
#include "common/tests/simt_types_probes.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <iterator>

namespace {

// The value that the low bytes of `bits` hold, and the bits of a value.
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}
template <class T>
uint64_t bits(T value) {
  uint64_t result = 0;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

template <auto function>
void each(const uint64_t* a, const uint64_t* b, uint64_t* results, size_t count) {
  for (size_t i = 0; i < count; ++i) results[i] = function(a[i], b[i]);
}

using worklog::Domain;

// clang-format off
const worklog::Probe probes[] = {
    // __half: of one
    {"__half2float", Domain::half, each<[](uint64_t a, uint64_t) { return bits(__half2float(from_bits<__half>(a))); }>},
    {"__half to float", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<float>(from_bits<__half>(a))); }>},
    {"__half to short", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<short>(from_bits<__half>(a))); }>},
    {"__half to unsigned short", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned short>(from_bits<__half>(a))); }>},
    {"__half to int", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<int>(from_bits<__half>(a))); }>},
    {"__half to unsigned int", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned int>(from_bits<__half>(a))); }>},
    {"__half to long long", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<long long>(from_bits<__half>(a))); }>},
    {"__half to unsigned long long", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned long long>(from_bits<__half>(a))); }>},
    {"__half to signed char", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<signed char>(from_bits<__half>(a))); }>},
    {"__half to unsigned char", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned char>(from_bits<__half>(a))); }>},
    {"__half to bool", Domain::half, each<[](uint64_t a, uint64_t) { return bits(static_cast<bool>(from_bits<__half>(a))); }>},
    {"__hneg of __half", Domain::half, each<[](uint64_t a, uint64_t) { return bits(__hneg(from_bits<__half>(a))); }>},
    {"__habs of __half", Domain::half, each<[](uint64_t a, uint64_t) { return bits(__habs(from_bits<__half>(a))); }>},
    {"__hisnan of __half", Domain::half, each<[](uint64_t a, uint64_t) { return bits(__hisnan(from_bits<__half>(a))); }>},
    {"__hisinf of __half", Domain::half, each<[](uint64_t a, uint64_t) { return bits(__hisinf(from_bits<__half>(a))); }>},
    // __half: of two
    {"__hadd of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hadd(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hsub of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hsub(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hmul of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmul(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hdiv of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hdiv(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hmax of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmax(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hmin of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmin(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hmax_nan of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmax_nan(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hmin_nan of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmin_nan(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__heq of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__heq(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hne of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hne(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hneu of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hneu(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hlt of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hlt(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hle of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hle(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hgt of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hgt(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__hge of __half", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(__hge(from_bits<__half>(a), from_bits<__half>(b))); }>},
    {"__half +", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) + from_bits<__half>(b)); }>},
    {"__half -", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) - from_bits<__half>(b)); }>},
    {"__half *", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) * from_bits<__half>(b)); }>},
    {"__half /", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) / from_bits<__half>(b)); }>},
    {"__half ==", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) == from_bits<__half>(b)); }>},
    {"__half !=", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) != from_bits<__half>(b)); }>},
    {"__half <", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) < from_bits<__half>(b)); }>},
    {"__half <=", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) <= from_bits<__half>(b)); }>},
    {"__half >", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) > from_bits<__half>(b)); }>},
    {"__half >=", Domain::half_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__half>(a) >= from_bits<__half>(b)); }>},
    // __half: from wider numbers
    {"__float2half", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2half(from_bits<float>(a))); }>},
    {"__float2half_rn", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2half_rn(from_bits<float>(a))); }>},
    {"__float2half_rz", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2half_rz(from_bits<float>(a))); }>},
    {"__float2half_rd", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2half_rd(from_bits<float>(a))); }>},
    {"__float2half_ru", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2half_ru(from_bits<float>(a))); }>},
    {"__half from float", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<float>(a))); }>},
    {"__double2half", Domain::double_, each<[](uint64_t a, uint64_t) { return bits(__double2half(from_bits<double>(a))); }>},
    {"__half from double", Domain::double_, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<double>(a))); }>},
    {"__int2half_rn", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__int2half_rn(from_bits<int>(a))); }>},
    {"__half from int", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<int>(a))); }>},
    {"__uint2half_rn", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__uint2half_rn(from_bits<unsigned int>(a))); }>},
    {"__half from unsigned int", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<unsigned int>(a))); }>},
    {"__ll2half_rn", Domain::int64, each<[](uint64_t a, uint64_t) { return bits(__ll2half_rn(from_bits<long long>(a))); }>},
    {"__half from long long", Domain::int64, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<long long>(a))); }>},
    {"__ull2half_rn", Domain::uint64, each<[](uint64_t a, uint64_t) { return bits(__ull2half_rn(from_bits<unsigned long long>(a))); }>},
    {"__half from unsigned long long", Domain::uint64, each<[](uint64_t a, uint64_t) { return bits(__half(from_bits<unsigned long long>(a))); }>},
    {"__short2half_rn", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__short2half_rn(from_bits<short>(a))); }>},
    {"__ushort2half_rn", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__ushort2half_rn(from_bits<unsigned short>(a))); }>},
    // __nv_bfloat16: of one
    {"__bfloat162float", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(__bfloat162float(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to float", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<float>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to short", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<short>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to unsigned short", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned short>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to int", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<int>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to unsigned int", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned int>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to long long", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<long long>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to unsigned long long", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned long long>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to signed char", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<signed char>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to unsigned char", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<unsigned char>(from_bits<__nv_bfloat16>(a))); }>},
    {"__nv_bfloat16 to bool", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(static_cast<bool>(from_bits<__nv_bfloat16>(a))); }>},
    {"__hneg of __nv_bfloat16", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(__hneg(from_bits<__nv_bfloat16>(a))); }>},
    {"__habs of __nv_bfloat16", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(__habs(from_bits<__nv_bfloat16>(a))); }>},
    {"__hisnan of __nv_bfloat16", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(__hisnan(from_bits<__nv_bfloat16>(a))); }>},
    {"__hisinf of __nv_bfloat16", Domain::bfloat16, each<[](uint64_t a, uint64_t) { return bits(__hisinf(from_bits<__nv_bfloat16>(a))); }>},
    // __nv_bfloat16: of two
    {"__hadd of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hadd(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hsub of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hsub(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hmul of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmul(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hdiv of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hdiv(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hmax of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmax(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hmin of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hmin(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    // Plus zero, because there the toolkit's host side ignores the signs of zeros. A GPU does not, and so neither do we.
    {"__hmax_nan of __nv_bfloat16, plus zero", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hadd(__hmax_nan(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b)), __nv_bfloat16(0.0f))); }>},
    {"__hmin_nan of __nv_bfloat16, plus zero", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hadd(__hmin_nan(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b)), __nv_bfloat16(0.0f))); }>},
    {"__heq of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__heq(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hne of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hne(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hneu of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hneu(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hlt of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hlt(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hle of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hle(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hgt of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hgt(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__hge of __nv_bfloat16", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(__hge(from_bits<__nv_bfloat16>(a), from_bits<__nv_bfloat16>(b))); }>},
    {"__nv_bfloat16 +", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) + from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 -", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) - from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 *", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) * from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 /", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) / from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 ==", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) == from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 !=", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) != from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 <", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) < from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 <=", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) <= from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 >", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) > from_bits<__nv_bfloat16>(b)); }>},
    {"__nv_bfloat16 >=", Domain::bfloat16_pair, each<[](uint64_t a, uint64_t b) { return bits(from_bits<__nv_bfloat16>(a) >= from_bits<__nv_bfloat16>(b)); }>},
    // __nv_bfloat16: from wider numbers
    {"__float2bfloat16", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2bfloat16(from_bits<float>(a))); }>},
    {"__float2bfloat16_rn", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2bfloat16_rn(from_bits<float>(a))); }>},
    {"__float2bfloat16_rz", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2bfloat16_rz(from_bits<float>(a))); }>},
    {"__float2bfloat16_rd", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2bfloat16_rd(from_bits<float>(a))); }>},
    {"__float2bfloat16_ru", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__float2bfloat16_ru(from_bits<float>(a))); }>},
    {"__nv_bfloat16 from float", Domain::float_, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<float>(a))); }>},
    {"__double2bfloat16", Domain::double_, each<[](uint64_t a, uint64_t) { return bits(__double2bfloat16(from_bits<double>(a))); }>},
    {"__nv_bfloat16 from double", Domain::double_, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<double>(a))); }>},
    {"__int2bfloat16_rn", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__int2bfloat16_rn(from_bits<int>(a))); }>},
    {"__nv_bfloat16 from int", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<int>(a))); }>},
    {"__uint2bfloat16_rn", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__uint2bfloat16_rn(from_bits<unsigned int>(a))); }>},
    {"__nv_bfloat16 from unsigned int", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<unsigned int>(a))); }>},
    {"__ll2bfloat16_rn", Domain::int64, each<[](uint64_t a, uint64_t) { return bits(__ll2bfloat16_rn(from_bits<long long>(a))); }>},
    {"__nv_bfloat16 from long long", Domain::int64, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<long long>(a))); }>},
    {"__ull2bfloat16_rn", Domain::uint64, each<[](uint64_t a, uint64_t) { return bits(__ull2bfloat16_rn(from_bits<unsigned long long>(a))); }>},
    {"__nv_bfloat16 from unsigned long long", Domain::uint64, each<[](uint64_t a, uint64_t) { return bits(__nv_bfloat16(from_bits<unsigned long long>(a))); }>},
    {"__short2bfloat16_rn", Domain::int32, each<[](uint64_t a, uint64_t) { return bits(__short2bfloat16_rn(from_bits<short>(a))); }>},
    {"__ushort2bfloat16_rn", Domain::uint32, each<[](uint64_t a, uint64_t) { return bits(__ushort2bfloat16_rn(from_bits<unsigned short>(a))); }>},
};
// clang-format on

}  // namespace

// Alone visible of what the toolkit's copy defines: its inline functions have the names of ours.
extern "C" __attribute__((visibility("default"))) worklog::Probes PROBES() {
  return {probes, std::size(probes)};
}
