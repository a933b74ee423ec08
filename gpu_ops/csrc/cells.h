// SPDX-License-Identifier: Apache-2.0
// Numbers of a KV pool in 8 bits. Those of one head of a position share a scale: a number is scale * cell. Both
// roundings are to the nearest, ties to even, as in gpu_ops/kv/cells.py.
#pragma once
#include "numbers.h"

// Rows without a larger number are stored as zeros: the inverse of their scale might not be finite.
constexpr float LEAST_LARGEST = 1e-30f;

// Cells of one register's lanes.
typedef int8_t NativeBytes __attribute__((vector_size(NATIVE_LANES)));

INLINE NativeWords load_bytes(const int8_t* from) {
#if defined(__AVX512F__)
    return (NativeWords)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
    return (NativeWords)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    NativeBytes x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, NativeWords);
#endif
}
INLINE void store_bytes(int8_t* to, NativeWords x) {
    const NativeBytes cells = __builtin_convertvector(x, NativeBytes);
    memcpy(to, &cells, sizeof cells);
}
// Adding 1.5 * 2^23 rounds to whole numbers.
INLINE Native whole(Native x) {
    const Native magic = Native{} + 12582912.0f;
    return (x + magic) - magic;
}

// Whole numbers up to 127. All of them are bfloat16 numbers.
struct Int8 {
    static constexpr float LARGEST = 127.0f;
    INLINE Native widen(const int8_t* from) { return __builtin_convertvector(load_bytes(from), Native); }
    INLINE void narrow(int8_t* to, Native x) { store_bytes(to, __builtin_convertvector(whole(x), NativeWords)); }
};

// A sign, four bits of exponent and three of mantissa (e4m3), up to 448. All of them are bfloat16 numbers; what would
// be NaN is read as 480.
struct Float8 {
    static constexpr float LARGEST = 448.0f;
    INLINE Native widen(const int8_t* from) {
        const NativeWords x = load_bytes(from), bits = (x & 0x7f) << 20;
        // The exponent's bias is 127 instead of 7. Where it is 0 there is no leading one, and steps are twice as large.
        const Native normal = (Native)(bits + (120 << 23)), small = (normal - 0.0078125f) * 2.0f;
        const NativeWords size = bits < (1 << 23) ? (NativeWords)small : (NativeWords)normal;
        return (Native)(size | (x & int32_t(0x80000000)));
    }
    INLINE void narrow(int8_t* to, Native x) {
        const NativeWords bits = (NativeWords)x, size = bits & 0x7fffffff;
        // The exponent's bias is 7 instead of 127; below 2^-6 the steps are 2^-9.
        const NativeWords normal = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - (120 << 3);
        const NativeWords small = __builtin_convertvector(whole((Native)size * 512.0f), NativeWords);
        const NativeWords least = NativeWords{} + 0x3c800000;
        store_bytes(to, (size < least ? small : normal) | ((bits >> 24) & 0x80));
    }
};

// The largest size of numbers x [size], a multiple of 16; NaN if one of them is.
INLINE float largest(const float* x, size_t size) {
    NativeWords most{};
    for (size_t i = 0; i < size; i += NATIVE_LANES) {
        const NativeWords bits = load_native(x + i) & 0x7fffffff;
        most = most > bits ? most : bits;
    }
    int32_t bits = 0;
    for (int i = 0; i < NATIVE_LANES; i++) bits = most[i] > bits ? most[i] : bits;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// The scale of numbers x [size], a multiple of 16, and its inverse. The scale is not finite if x is not.
template <class C>
struct Scale {
    Scale(const float* x, size_t size) {
        const float most = largest(x, size);
        scale = most * (1.0f / C::LARGEST);
        inverse = most > LEAST_LARGEST ? C::LARGEST / most : 0.0f;
    }
    // Stores the cells of 16 of the numbers.
    void narrow(const float* x, int8_t* cells) const {
        const Native limit = Native{} + C::LARGEST;
        for (int i = 0; i < LANES; i += NATIVE_LANES)
            C::narrow(cells + i, max(min((Native)load_native(x + i) * inverse, limit), -limit));
    }
    float scale, inverse;
};

// Widens cells [rows][width] to words of T, each of which joins PER_WORD rows: [rows / PER_WORD][width]. `ahead`, as
// large, is prefetched. width is a multiple of 16.
template <class T, class C>
static void widen_rows(const int8_t* cells, int rows, size_t width, const int8_t* ahead, uint32_t* words) {
    for (int row = 0; row < rows; row += T::PER_WORD, cells += T::PER_WORD * width)
        for (size_t i = 0; i < width; i += NATIVE_LANES) {
            NativeWords x = (NativeWords)C::widen(cells + i);
            if (T::PER_WORD == 2) x = ((x >> 16) & 0xffff) | (NativeWords)C::widen(cells + width + i);
            memcpy(words, &x, sizeof x);
            words += NATIVE_LANES;
            const size_t read = row * width + T::PER_WORD * i;
            if (read % 64 == 0) __builtin_prefetch(ahead + read, 0, 3);
        }
}
