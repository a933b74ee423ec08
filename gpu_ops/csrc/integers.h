// SPDX-License-Identifier: Apache-2.0
// Whole numbers of 16 bits, multiplied in pairs and summed exactly in 32 bits.
#pragma once
#include "vector.h"
#if defined(__SSE2__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

typedef int16_t NativeIntegers __attribute__((vector_size(NATIVE_BYTES)));

// a * b / 2^15, rounded to the nearest; of two the higher.
INLINE NativeIntegers multiply_high(NativeIntegers a, NativeIntegers b) {
#if defined(__AVX512BW__)
    return (NativeIntegers)_mm512_mulhrs_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (NativeIntegers)_mm256_mulhrs_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (NativeIntegers)vqrdmulhq_s16((int16x8_t)a, (int16x8_t)b);
#else
    typedef int32_t Wide __attribute__((vector_size(2 * NATIVE_BYTES)));
    const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
    return __builtin_convertvector((product + 0x4000) >> 15, NativeIntegers);
#endif
}

#if defined(__AVX2__)
#define PONTIL_DIGITS
// The products of bytes without a sign and bytes with one, neighbours summed. They must fit 16 bits.
INLINE NativeIntegers multiply_bytes(NativeWords levels, NativeWords digits) {
#if defined(__AVX512BW__)
    return (NativeIntegers)_mm512_maddubs_epi16((__m512i)levels, (__m512i)digits);
#else
    return (NativeIntegers)_mm256_maddubs_epi16((__m256i)levels, (__m256i)digits);
#endif
}
#endif

// The entries of a table of 16 bytes at the places that the bytes of `places` say; 0 where one has its highest bit.
struct ByteTable {
    explicit ByteTable(const int8_t* from) {
        for (int i = 0; i < NATIVE_BYTES; i += 16) memcpy(reinterpret_cast<char*>(&entries) + i, from, 16);
    }
    NativeIntegers at(NativeIntegers places) const {
#if defined(__AVX512BW__)
        return (NativeIntegers)_mm512_shuffle_epi8((__m512i)entries, (__m512i)places);
#elif defined(__AVX2__)
        return (NativeIntegers)_mm256_shuffle_epi8((__m256i)entries, (__m256i)places);
#elif defined(__aarch64__)
        return (NativeIntegers)vqtbl1q_s8((int8x16_t)entries, (uint8x16_t)places);
#else
        int8_t from[NATIVE_BYTES], made[NATIVE_BYTES];
        memcpy(from, &entries, NATIVE_BYTES), memcpy(made, &places, NATIVE_BYTES);
        for (int8_t& one : made) one = one < 0 ? 0 : from[one & 15];
        memcpy(&places, made, NATIVE_BYTES);
        return places;
#endif
    }
    NativeIntegers entries;
};

// Pairs of weights and of activations, as accumulate.h multiplies them.
struct Int16 {
    enum { PER_WORD = 2, STEPS = 1 };
    INLINE NativeWords dot(NativeWords sums, NativeWords w, NativeWords x) {
#if defined(__AVX512VNNI__)
        return (NativeWords)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
#elif defined(__AVX512BW__)
        return sums + (NativeWords)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
        return sums + (NativeWords)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__SSE2__)
        return sums + (NativeWords)_mm_madd_epi16((__m128i)w, (__m128i)x);
#elif defined(__aarch64__)
        const int16x8_t a = (int16x8_t)w, b = (int16x8_t)x;
        const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b)), high = vmull_high_s16(a, b);
        return sums + (NativeWords)vpaddq_s32(low, high);
#else
        return sums + ((w << 16) >> 16) * ((x << 16) >> 16) + (w >> 16) * (x >> 16);
#endif
    }
};
