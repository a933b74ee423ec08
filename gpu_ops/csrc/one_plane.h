// SPDX-License-Identifier: Apache-2.0
// Keys whose first numbers are their values too, so that they are stored once.
#pragma once
#include "scaled_keys.h"

// Four words: every processor has registers of this size, and wider ones shuffle no more words in a cycle.
typedef uint32_t Quad __attribute__((vector_size(16)));
typedef uint16_t QuadHalves __attribute__((vector_size(16)));

#if defined(__clang__)
#define PONTIL_SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PONTIL_SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, type{__VA_ARGS__})
#endif
INLINE Quad low_words(Quad a, Quad b) { return PONTIL_SHUFFLE(Quad, a, b, 0, 4, 1, 5); }
INLINE Quad high_words(Quad a, Quad b) { return PONTIL_SHUFFLE(Quad, a, b, 2, 6, 3, 7); }
INLINE Quad low_pairs(Quad a, Quad b) { return PONTIL_SHUFFLE(Quad, a, b, 0, 1, 4, 5); }
INLINE Quad high_pairs(Quad a, Quad b) { return PONTIL_SHUFFLE(Quad, a, b, 2, 3, 6, 7); }
// Of each two words: from two numbers of one position, then two of the next, to one number of both, then the other.
INLINE Quad regroup(Quad x) {
    const QuadHalves halves = (QuadHalves)x;
    return (Quad)PONTIL_SHUFFLE(QuadHalves, halves, halves, 0, 2, 1, 3, 4, 6, 5, 7);
}
INLINE Quad load_quad(const uint32_t* from) {
    Quad x;
    memcpy(&x, from, sizeof x);
    return x;
}
INLINE void store_quad(uint32_t* to, Quad x) { memcpy(to, &x, sizeof x); }

// From a panel of 16 keys, [word][16], to their values [position / PER_WORD][value_dim]. value_dim is a multiple of 16.
template <class Number>
static void values_of_panel(const uint32_t* panel, size_t value_dim, uint32_t* values) {
    for (int slot = 0; slot < LANES; slot += 4) {
        const uint32_t* from = panel + slot;
        uint32_t* to = values + slot / Number::PER_WORD * value_dim;
        if constexpr (Number::PER_WORD == 1) {
            for (size_t i = 0; i < value_dim; i += 4, from += 4 * LANES) {
                const Quad a = load_quad(from), b = load_quad(from + LANES);
                const Quad c = load_quad(from + 2 * LANES), d = load_quad(from + 3 * LANES);
                const Quad ab = low_words(a, b), cd = low_words(c, d), ab2 = high_words(a, b), cd2 = high_words(c, d);
                store_quad(to + i, low_pairs(ab, cd));
                store_quad(to + value_dim + i, high_pairs(ab, cd));
                store_quad(to + 2 * value_dim + i, low_pairs(ab2, cd2));
                store_quad(to + 3 * value_dim + i, high_pairs(ab2, cd2));
            }
        } else {
            for (size_t i = 0; i < value_dim; i += 4, from += 2 * LANES) {
                const Quad a = load_quad(from), b = load_quad(from + LANES);
                store_quad(to + i, regroup(low_pairs(a, b)));
                store_quad(to + value_dim + i, regroup(high_pairs(a, b)));
            }
        }
    }
}

// K is Keys or ScaledKeys.
template <class K>
struct OnePlane : K {
    using K::K;
    typedef typename K::Number Number;

    void store_value(const int32_t*, int, const float*) const {}

    size_t values_size() const { return LANES / Number::PER_WORD * this->value_dim; }
    size_t scratch_words() const { return K::scratch_words() + PANELS * values_size(); }
    void pieces(const uint32_t* const*, const uint32_t* const*, const uint32_t* const* panels, int count,
                uint32_t* scratch, const uint32_t** all, const uint32_t** ahead) const {
        uint32_t* made = scratch + K::scratch_words();
        for (int p = 0; p < PANELS && p * LANES < count; p++)
            values_of_panel<Number>(panels[p], this->value_dim, made + p * values_size());
        for (int i = 0; i < PIECES; i++) all[i] = ahead[i] = made + i * (values_size() / 2);
    }
    void scales(const uint32_t* const* here, float* keys, float* values) const {
        K::scales_of_keys(here, keys);
        memcpy(values, keys, STRIP * sizeof *keys);
    }
};
