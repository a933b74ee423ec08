// SPDX-License-Identifier: Apache-2.0
// Products with packed weights. Batch-invariant: each output of each row is one running sum over the words of its
// inputs, in order, for any number of rows.
#pragma once
#include <algorithm>

#include "context.h"
#include "kernels.h"
#include "accumulate.h"

enum { GROUP = 2 * LANES };  // outputs whose weights are stored together
enum { ROWS_AT_ONCE = ROWS_OF_1 };
// Rows of unpacked weights at once. With 32 registers so few rows that float sums stay in registers as well.
#if defined(__AVX512F__)
enum { UNPACKED_ROWS = 7, SUMS_STAY = 1 };
#else
enum { UNPACKED_ROWS = ROWS_AT_ONCE, SUMS_STAY = 0 };
#endif
// Memory for so many rows follows the inputs: see tiles.h.
enum { ROWS_BEHIND = 31 };

// The rows [row, row + rows) go through this matrix, which has this place among equal ones that share their adapters.
struct Part {
    const Matrix* matrix;
    int row, rows, place = 0;
};

// The function that takes 32 outputs of a row, from `output` on. It is called by address, so that products are compiled
// once for all of them. Rows are counted from `first` on.
struct Finish {
    typedef void (*Call)(void* with, int part, int row, int output, float* sums);
    void operator()(int row, int output, float* sums) const { call(with, part, first + row, output, sums); }
    void* with;
    Call call;
    int part, first;
};

INLINE int padded(int size, int unit) { return (size + unit - 1) / unit * unit; }

// Whether a group has one panel rather than two.
INLINE bool is_odd(const Matrix& matrix, int group) { return matrix.odd && (group + 1) * GROUP >= matrix.outputs; }

// The group of weights that is read after this one. Each block of rows prefetches an equal part of it: while it
// multiplies the words [first, first + count), it prefetches those that are `distance` behind.
struct Ahead {
    size_t distance;
    int first, count;
};

// Sums [R][GROUP] of R rows with a group of weights of N panels. Where nothing is to be prefetched it is what is loaded
// anyway, so that the innermost loop has no branches, and leaves the general registers to the addresses of the rows.
template <class T, int R, int N>
static void product(const uint32_t* x, size_t stride, const uint32_t* weights, int words, Ahead ahead,
                    float* sums) {
    enum { P = panels_at_once<R, N>(), Q = P * NATIVES, WIDTH = N * LANES };
    for (int panel = 0; panel < N; panel += P) {
        Native total[R][Q];
        clear(total);
        for (int start = 0, end; start < words; start = end) {
            const bool due = start == ahead.first;
            end = std::min(words, start < ahead.first ? ahead.first : due ? start + ahead.count : words);
            const uint32_t* from = weights + size_t(start) * WIDTH + panel * LANES;
            const uint32_t* lines = due ? from + ahead.distance : from;
            accumulate<T>(total, x + start * T::STEPS, stride, end - start, [&](int word, int part, int q) {
                if (q % NATIVES + part == 0) __builtin_prefetch(lines + word * WIDTH + q * NATIVE_LANES, 0, 2);
                return T::part(load_native(from + word * WIDTH + q * NATIVE_LANES), part);
            });
        }
        store(total, sums + panel * LANES, GROUP);
    }
}

typedef void (*Product)(const uint32_t*, size_t, const uint32_t*, int, Ahead, float*);

// The product of `rows` rows, at most R, with N panels.
template <class T, int N, int R = ROWS_AT_ONCE>
static Product product_of(int rows) {
    if constexpr (R == 1)
        return product<T, 1, N>;
    else
        return rows == R ? product<T, R, N> : product_of<T, N, R - 1>(rows);
}

// The number of rows to compute next, of `rows` that are left: 32 rows are divided into 11, 11 and 10 rather than 12,
// 12 and 8.
INLINE int next_rows(int rows, int most) {
    const int blocks = (rows + most - 1) / most;
    return (rows + blocks - 1) / blocks;
}

// Multiplies rows x [rows][words * STEPS] with a group of N panels of weights, and prefetches `next`, as large as the
// group.
template <class T, int N>
static void multiply_rows(const uint32_t* weights, const uint32_t* next, int words, const uint32_t* x, int rows,
                          int output, const Finish& finish) {
    const size_t stride = size_t(words) * T::STEPS;
    const int blocks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    Ahead ahead{size_t(next - weights), 0, (words + blocks - 1) / blocks};
    alignas(64) float sums[ROWS_AT_ONCE * GROUP];
    for (int row = 0; row < rows;) {
        const int count = next_rows(rows - row, ROWS_AT_ONCE);
        product_of<T, N>(count)(x + row * stride, stride, weights, words, ahead, sums);
        ahead.first += ahead.count;
        for (int r = 0; r < count; r++) finish(row + r, output, sums + r * GROUP);
        row += count;
    }
}

INLINE void add_bias(const Matrix& matrix, int output, float* sums) {
    if (!matrix.bias) return;
    for (int i = 0; i < GROUP; i += LANES) store(sums + i, load(sums + i) + load(matrix.bias + output + i));
}
