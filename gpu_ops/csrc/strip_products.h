// SPDX-License-Identifier: Apache-2.0
// Products of queries with a strip of keys and values: by vectors here, by the matrix unit in attention_tiles.h.
#pragma once
#include "kv_layout.h"
#include "linear.h"

// Queries computed together: heads of a group times positions.
#if defined(PONTIL_TILES)
enum { QUERIES = 96 };
#else
enum { QUERIES = 48 };
#endif
// Queries whose sums are in registers at once.
enum { QUERY_ROWS = ROWS_OF_4 > 0 ? ROWS_OF_4 : ROWS_OF_1 };

// The keys of a strip: panels of 16, [word][16] each. `ahead` is prefetched.
struct KeyPanels {
    const uint32_t *panels[PANELS], *ahead[PANELS];
    int words;
};
// The values of a strip: [position / PER_WORD][dim] words for each piece; `count` positions are valid.
struct Values {
    const uint32_t *pieces[PIECES], *ahead[PIECES];
    int dim, count;
};

// Scores [R][STRIP] of R queries with panels of 16 keys, [word][16] each. `ahead` is prefetched.
template <class T, int R>
static void scores_of(const uint32_t* queries, size_t stride, int words, const uint32_t* const* panels,
                      const uint32_t* const* ahead, float* scores) {
    enum { P = panels_at_once<R, PANELS>(), Q = P * NATIVES };
    for (int panel = 0; panel < PANELS; panel += P) {
        Native total[R][Q];
        clear(total);
        accumulate<T>(total, queries, stride, words, [&](int word, int step, int q) {
            const int p = panel + q / NATIVES;
            if (q % NATIVES + step == 0) __builtin_prefetch(ahead[p] + word * LANES, 0, 3);
            return T::part(load_native(panels[p] + word * LANES + q % NATIVES * NATIVE_LANES), step);
        });
        store(total, scores + panel * LANES, STRIP);
    }
}

// Multiplies sums [R][dim], N panels of each from `column` on, by the row's correction, then adds the weighted values.
// weights [R][STRIP] activations.
template <class T, int R, int N>
static void add_values(const uint32_t* weights, const Values& values, int column, const float* correction,
                       float* sums) {
    enum { STEPS = PIECE / T::PER_WORD, STRIDE = STRIP / T::PER_WORD * T::STEPS, Q = N * NATIVES };
    Native x[R][Q];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int q = 0; q < Q; q++)
            x[r][q] = (Native)load_native(sums + r * values.dim + column + q * NATIVE_LANES) * correction[r];
    auto add = [&](int step, int count, int32_t there) {
        const size_t at = step % STEPS * values.dim + column;
        const uint32_t *from = values.pieces[step / STEPS] + at, *next = values.ahead[step / STEPS] + at;
        accumulate<T>(x, weights + step * T::STEPS, STRIDE, count, [&](int word, int part, int q) {
            const size_t place = word * values.dim + q * NATIVE_LANES;
            if (q % NATIVES + part == 0) __builtin_prefetch(next + place, 0, 3);
            return T::part(load_native(from + place) & there, part);
        });
    };
    const int whole = values.count / T::PER_WORD;
    for (int step = 0; step < whole; step += STEPS) add(step, whole - step < STEPS ? whole - step : int(STEPS), ~0);
    // The position that shares the last one's words was never written: its cells may hold NaN.
    if (values.count % T::PER_WORD) add(whole, 1, 0xffff);
    store(x, sums + column, values.dim);
}

// The kernel for `rows` rows, at most R.
template <class T, int R = QUERY_ROWS>
static auto scores_of_rows(int rows) {
    if constexpr (R == 1)
        return scores_of<T, 1>;
    else
        return rows == R ? scores_of<T, R> : scores_of_rows<T, R - 1>(rows);
}
template <class T, int N, int R = QUERY_ROWS>
static auto add_values_of(int rows) {
    if constexpr (R == 1)
        return add_values<T, 1, N>;
    else
        return rows == R ? add_values<T, R, N> : add_values_of<T, N, R - 1>(rows);
}
// The most panels that one call takes.
constexpr int VALUE_PANELS = panels_at_once<QUERY_ROWS, 4>();
template <class T, int N = VALUE_PANELS>
static auto add_values_of_rows(int rows, int panels) {
    if constexpr (N == 1)
        return add_values_of<T, 1>(rows);
    else
        return panels == N ? add_values_of<T, N>(rows) : add_values_of_rows<T, N - 1>(rows, panels);
}

// A strip's products with its queries.
template <class T>
struct VectorProducts {
    // Queries are padded to a multiple of ROWS, and computed in parts.
    enum { ROWS = 1, PART = QUERIES };
    // Words of a query, of the sums of its values, and of memory for a strip.
    static int query_words(int words) { return words * T::STEPS; }
    static int sum_words(int dim) { return dim; }
    static size_t scratch_words(int, int) { return 0; }

    void take(const KeyPanels& panels, uint32_t*) { keys = panels; }
    void take(const Values& pieces) { values = pieces; }
    // Scores [count][STRIP] of queries [count][query_words].
    void score(const uint32_t* queries, int count, float* scores) const {
        const size_t stride = query_words(keys.words);
        for (int q = 0; q < count; q += QUERY_ROWS) {
            const int some = count - q < QUERY_ROWS ? count - q : int(QUERY_ROWS);
            scores_of_rows<T>(some)(queries + q * stride, stride, keys.words, keys.panels, keys.ahead,
                                    scores + q * STRIP);
        }
    }
    // Multiplies sums [count][sum_words] by `correction` [count], then adds the values by weights [count][STRIP
    // activations].
    void add(const uint32_t* weights, int count, const float* correction, float* sums) const {
        enum { STRIDE = STRIP / T::PER_WORD * T::STEPS };
        for (int column = 0, dim = values.dim; column < dim; column += VALUE_PANELS * LANES) {
            const int some_panels = dim - column < VALUE_PANELS * LANES ? (dim - column) / LANES : VALUE_PANELS;
            for (int q = 0; q < count; q += QUERY_ROWS) {
                const int some = count - q < QUERY_ROWS ? count - q : int(QUERY_ROWS);
                add_values_of_rows<T>(some, some_panels)(weights + q * STRIDE, values, column, correction + q,
                                                         sums + size_t(q) * dim);
            }
        }
    }

    KeyPanels keys;
    Values values;
};
