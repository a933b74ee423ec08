// SPDX-License-Identifier: Apache-2.0
// Vectors of sixteen numbers on any processor. Every function rounds each lane in one fixed way, so that an element's
// bits never depend on its neighbours; the compiler is told not to contract products and sums by itself.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
enum { LANES = 16 };

// Vectors that fit a register: the innermost loops use these, because compilers keep wider vectors in memory.
#if defined(__AVX512F__)
enum { NATIVE_BYTES = 64 };
#elif defined(__AVX2__)
enum { NATIVE_BYTES = 32 };
#else
enum { NATIVE_BYTES = 16 };
#endif
typedef float Native __attribute__((vector_size(NATIVE_BYTES)));
typedef int32_t NativeWords __attribute__((vector_size(NATIVE_BYTES)));
enum { NATIVES = 64 / NATIVE_BYTES, NATIVE_LANES = LANES / NATIVES };

INLINE Floats load(const float* from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
INLINE Words load_words(const void* from) {
    Words x;
    memcpy(&x, from, sizeof x);
    return x;
}
INLINE void store(float* to, Floats x) { memcpy(to, &x, sizeof x); }
INLINE void store_words(void* to, Words x) { memcpy(to, &x, sizeof x); }
INLINE Words splat(uint32_t x) {
    return Words{} + int32_t(x);
}
INLINE Floats splat(float x) {
#if defined(__AVX512F__)
    return (Floats)_mm512_set1_ps(x);
#else
    return Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#endif
}
template <class V>
INLINE V max(V a, V b) {
    return a > b ? a : b;
}
template <class V>
INLINE V min(V a, V b) {
    return a < b ? a : b;
}
#if defined(__AVX512F__)
// The same, also where one is NaN, in one instruction.
INLINE Floats max(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Floats min(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
#endif
// The vector of whole numbers that is as large as V.
template <class V>
using WordsOf = decltype(V{} < V{});

INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    __m256 p[2], q[2], r[2];
    memcpy(p, &a, sizeof a), memcpy(q, &b, sizeof b), memcpy(r, &c, sizeof c);
    for (int i = 0; i < 2; i++) r[i] = _mm256_fmadd_ps(p[i], q[i], r[i]);
    memcpy(&c, r, sizeof c);
    return c;
#elif defined(__aarch64__)
    float32x4_t p[4], q[4], r[4];
    memcpy(p, &a, sizeof a), memcpy(q, &b, sizeof b), memcpy(r, &c, sizeof c);
    for (int i = 0; i < 4; i++) r[i] = vfmaq_f32(r[i], p[i], q[i]);
    memcpy(&c, r, sizeof c);
    return c;
#else
    return a * b + c;
#endif
}
#if !defined(__AVX512F__)
INLINE Native multiply_add(Native a, Native b, Native c) {
#if defined(__FMA__)
    return (Native)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Native)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
#endif

// Sums and maxima over the lanes, always in the same order.
INLINE float sum(Floats x) {
    float lanes[LANES];
    memcpy(lanes, &x, sizeof x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}
INLINE float highest(Native x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float lanes[NATIVE_LANES];
    memcpy(lanes, &x, sizeof x);
    for (int half = NATIVE_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
#endif
}

// 2^x to about two units in the last place; x is clamped to [-126, 126].
template <class V>
INLINE V exp2(V x) {
    x = min(max(x, V{} - 126.0f), V{} + 126.0f);
#if defined(__AVX512F__)
    const V nearest = (V)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V rest = x - nearest;
#else
    const V magic = V{} + 12582912.0f;  // adding 1.5 * 2^23 rounds to whole numbers
    const V shifted = x + magic, rest = x - (shifted - magic);
#endif
    V power = V{} + 1.5403530e-4f;
    power = multiply_add(power, rest, V{} + 1.3333558e-3f);
    power = multiply_add(power, rest, V{} + 9.6181291e-3f);
    power = multiply_add(power, rest, V{} + 5.5504109e-2f);
    power = multiply_add(power, rest, V{} + 2.4022651e-1f);
    power = multiply_add(power, rest, V{} + 6.9314718e-1f);
    power = multiply_add(power, rest, V{} + 1.0f);
#if defined(__AVX512F__)
    return (V)_mm512_scalef_ps((__m512)power, (__m512)nearest);
#else
    auto exponent = ((WordsOf<V>)shifted - (WordsOf<V>)magic + 127) << 23;
    return power * (V)exponent;
#endif
}

template <class V>
INLINE V sigmoid(V x) {
    return 1.0f / (1.0f + exp2(x * -1.442695041f));
}
template <class V>
INLINE V silu(V x) {
    return x * sigmoid(x);
}
// The tanh formula: 0.5 x (1 + tanh(u)) is x * sigmoid(2 u).
template <class V>
INLINE V gelu_tanh(V x) {
    V inner = 1.5957691216f * (x + 0.044715f * x * x * x);
    return x * sigmoid(inner);
}

// As a sum with zeros it would be rounded, so the compiler would have to add.
INLINE Native all_lanes(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (Native)(NativeWords{} + bits);
}
// The numbers of the lanes.
INLINE NativeWords first_lanes() {
    NativeWords lanes;
    for (int i = 0; i < NATIVE_LANES; i++) lanes[i] = i;
    return lanes;
}
INLINE NativeWords load_native(const void* from) {
    NativeWords x;
    memcpy(&x, from, NATIVE_BYTES);
    return x;
}
// Whether any lane is not 0.
INLINE bool any(NativeWords x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x);
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    uint64_t parts[NATIVE_BYTES / 8], all = 0;
    memcpy(parts, &x, sizeof x);
    for (uint64_t part : parts) all |= part;
    return all;
#endif
}
