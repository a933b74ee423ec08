// SPDX-License-Identifier: Apache-2.0
// Operations on single rows between the products.
#pragma once
#include <cmath>

#include "products.h"

// size is a multiple of 16.
INLINE float inverse_rms(const float* x, int size, float epsilon) {
    Floats squares{};
    for (int i = 0; i < size; i += LANES) squares = multiply_add(load(x + i), load(x + i), squares);
    return 1.0f / sqrtf(sum(squares) / float(size) + epsilon);
}

// Writes x [size], normed if weights are given, as activations for `words` words of T, the last ones padded with zeros.
template <class T>
static void take_row(const float* x, const float* weights, float epsilon, int size, uint32_t* result, int words) {
    typename T::Active* cells = reinterpret_cast<typename T::Active*>(result);
    if (weights) {
        Floats scale = splat(inverse_rms(x, size, epsilon));
        for (int i = 0; i < size; i += LANES) T::store_active(cells + i, load(x + i) * scale * load(weights + i));
    } else {
        for (int i = 0; i < size; i += LANES) T::store_active(cells + i, load(x + i));
    }
    memset(cells + size, 0, size_t(words) * T::STEPS * 4 - size * sizeof(typename T::Active));
}

INLINE void add_row(const float* x, int size, float* hidden) {
    for (int i = 0; i < size; i += LANES) store(hidden + i, load(hidden + i) + load(x + i));
}
// Zeroes what is behind the first `size` of each row's cells.
template <class C>
static void clear_padding(C* x, int rows, size_t size, size_t cells) {
    for (size_t row = 0; row < size_t(rows); row++) memset(x + row * cells + size, 0, (cells - size) * sizeof(C));
}
// hidden += x / rms(x) * weights.
INLINE void add_normed(const float* x, const float* weights, float epsilon, int size, float* hidden) {
    Floats scale = splat(inverse_rms(x, size, epsilon));
    for (int i = 0; i < size; i += LANES) store(hidden + i, load(hidden + i) + load(x + i) * scale * load(weights + i));
}

// Norms one head [dim] in place, if weights are given. dim is a multiple of 16.
INLINE void norm_head(float* x, const float* weights, float epsilon, int dim) {
    if (!weights) return;
    Floats scale = splat(inverse_rms(x, dim, epsilon));
    for (int i = 0; i < dim; i += LANES) store(x + i, load(x + i) * scale * load(weights + i));
}
// Rotates in place: dimension i turns with i + dim / 2. Half of dim may be no multiple of 16, so the rotation goes
// number by number there.
INLINE void turn_head(float* x, const float* cosines, const float* sines, int dim) {
    int half = dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        Floats a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[half + i] = b * cosines[i] + a * sines[i];
    }
}
// Rotates the first numbers of a head at this position; `spare` holds as many as turn.
INLINE void turn(const Rotation& rotation, int position, float* x, float* spare) {
    const int half = rotation.dim / 2;
    if (rotation.interleaved) {
        memcpy(spare, x, rotation.dim * sizeof *x);
        for (int i = 0; i < half; i++) x[i] = spare[2 * i], x[half + i] = spare[2 * i + 1];
    }
    turn_head(x, rotation.cosines + size_t(position) * half, rotation.sines + size_t(position) * half, rotation.dim);
}
