// SPDX-License-Identifier: Apache-2.0
// Products with packed weights. Each output of each row is one running sum over the words of its inputs, in order,
// however many rows there are: a row's bits know no company.
#pragma once
#include "crew.h"
#include "kernels.h"
#include "vector.h"

enum { GROUP = 2 * LANES };  // outputs that are computed together
#if defined(__AVX512F__)
enum { ROWS_AT_ONCE = 12 };
#else
enum { ROWS_AT_ONCE = 3 };
#endif
// Rows whose inputs stay in the second-level cache while all weights pass by.
enum { ROWS_IN_CACHE = 120 };

INLINE int padded(int size, int unit) { return (size + unit - 1) / unit * unit; }

// sums [R][GROUP] of R rows with one group of weights. `ahead` is fetched from memory meanwhile: the next group.
template <class T, int R, int LINES>
static void product(const uint32_t* x, size_t stride, const uint32_t* weights, int words, const uint32_t* ahead,
                    float* sums) {
    Floats low[R], high[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) low[r] = high[r] = Floats{};
    for (int word = 0; word < words; word++) {
        if (LINES) __builtin_prefetch(ahead + word * LANES * LINES, 0, 2);
        if (LINES > 1) __builtin_prefetch(ahead + word * LANES * LINES + LANES, 0, 2);
        Words first = load_words(weights + word * GROUP), second = load_words(weights + word * GROUP + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            Words one = splat(x[r * stride + word]);
            low[r] = T::dot(low[r], first, one);
            high[r] = T::dot(high[r], second, one);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
        store(sums + r * GROUP, low[r]);
        store(sums + r * GROUP + LANES, high[r]);
    }
}

typedef void (*Product)(const uint32_t*, size_t, const uint32_t*, int, const uint32_t*, float*);

// The product of `rows` rows at once that fetches so many cache lines ahead in each step.
template <class T, int LINES, int R = ROWS_AT_ONCE>
static Product product_of(int rows) {
    if constexpr (R == 1)
        return product<T, 1, LINES>;
    else
        return rows == R ? product<T, R, LINES> : product_of<T, LINES, R - 1>(rows);
}

// finish(row, output, sums) takes 32 outputs of a row, from `output` on. x [rows][words].
template <class T, class Finish>
static void multiply_group(const Matrix& matrix, int group, const uint32_t* x, int rows, Finish&& finish) {
    const size_t size = size_t(matrix.words) * GROUP;
    const uint32_t* weights = matrix.data + group * size;
    const uint32_t* next = weights + size;
    alignas(64) float sums[ROWS_AT_ONCE * GROUP];
    for (int row = 0; row < rows;) {
        // Equal shares: 32 rows as 11, 11 and 10 rather than 12, 12 and 8.
        int blocks = (rows - row + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, count = (rows - row + blocks - 1) / blocks;
        const uint32_t* rest = x + size_t(row) * matrix.words;
        // The next group is fetched once, spread over the first passes.
        if (rows <= ROWS_AT_ONCE)
            product_of<T, 2>(count)(rest, matrix.words, weights, matrix.words, next, sums);
        else if (row < 2 * count)
            product_of<T, 1>(count)(rest, matrix.words, weights, matrix.words, next + (row ? size / 2 : 0), sums);
        else
            product_of<T, 0>(count)(rest, matrix.words, weights, matrix.words, next, sums);
        for (int r = 0; r < count; r++) finish(row + r, group * GROUP, sums + r * GROUP);
        row += count;
    }
}

template <class T, class Finish>
static void multiply(Crew& crew, const Matrix& matrix, const uint32_t* x, int rows, Finish&& finish) {
    int groups = padded(matrix.outputs, GROUP) / GROUP;
    crew.share(groups, [&](int first, int end, int) {
        for (int start = 0; start < rows; start += ROWS_IN_CACHE) {
            int count = rows - start < ROWS_IN_CACHE ? rows - start : int(ROWS_IN_CACHE);
            for (int group = first; group < end; group++)
                multiply_group<T>(matrix, group, x + size_t(start) * matrix.words, count,
                                  [&](int row, int output, float* sums) { finish(start + row, output, sums); });
        }
    });
}

INLINE void add_bias(const Matrix& matrix, int output, float* sums) {
    if (!matrix.bias) return;
    for (int i = 0; i < GROUP; i += LANES) store(sums + i, load(sums + i) + load(matrix.bias + output + i));
}
