// SPDX-License-Identifier: Apache-2.0
// Paged attention. A query goes through the keys it sees in strips of STRIP positions aligned to the beginning of the
// text, with a running maximum (Milakov and Gimelshein, 2018; Dao et al., 2022). Batch-invariant: a query's own numbers
// go through the same operations in the same order for any other queries beside it; a strip or a key that it does not
// see adds exact zeros.
#pragma once
#include "linear.h"
#include "one_plane.h"

// Queries computed together: heads of a group times positions.
enum { QUERIES = 48 };
// Queries whose sums are in registers at once.
enum { QUERY_ROWS = ROWS_OF_4 > 0 ? ROWS_OF_4 : ROWS_OF_1 };
// Below any score, and finite, so that differences with it are numbers.
constexpr float NOTHING = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

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

// The values of a strip: [position / PER_WORD][dim] words for each piece; `count` positions are valid.
struct Values {
    const uint32_t* const* pieces;
    const uint32_t* const* ahead;
    size_t dim;
    int count;
};

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

// A query's scores with a strip, of which it sees the keys from `low` to `high`.
struct StripScores {
    const float *scores, *key_scales, *value_scales;
    float scale;
    int low, high;
};

// Turns scores into weights, and brings the running maximum and total up to date. Returns what the sums of earlier
// strips are to be multiplied by. WHOLE: every key is seen.
template <class T, bool SCALED, bool WHOLE>
static float weigh_strip(const StripScores& strip, float& highest_so_far, float* total, typename T::Active* weights) {
    enum { VECTORS = STRIP / NATIVE_LANES };
    const Native before = all_lanes(highest_so_far), nothing = Native{} + NOTHING;
    Native best = before, x[VECTORS];
#pragma GCC unroll 16
    for (int n = 0; n < VECTORS; n++) {
        const NativeWords lane = first_lanes() + n * NATIVE_LANES;
        x[n] = (Native)load_native(strip.scores + n * NATIVE_LANES) * (strip.scale * LOG2_E);
        if (SCALED) x[n] *= (Native)load_native(strip.key_scales + n * NATIVE_LANES);
        if (!WHOLE) x[n] = ((lane >= strip.low) & (lane <= strip.high)) ? x[n] : nothing;
        best = max(best, x[n]);
    }
    highest_so_far = highest(best);
    const Native top = all_lanes(highest_so_far);
    Native share[NATIVES] = {};
#pragma GCC unroll 16
    for (int n = 0; n < VECTORS; n++) {
        Native weight = exp2(x[n] - top);
        if (!WHOLE) weight = x[n] > nothing ? weight : Native{};
        share[n % NATIVES] += weight;
        if (SCALED) {
            weight *= (Native)load_native(strip.value_scales + n * NATIVE_LANES);
            if (!WHOLE) weight = x[n] > nothing ? weight : Native{};
        }
        T::store_active(weights + n * NATIVE_LANES, weight);
    }
    const Native change = before > nothing ? exp2(before - top) : Native{};
    for (int n = 0; n < NATIVES; n++) {
        const Native sum = (Native)load_native(total + n * NATIVE_LANES) * change + share[n];
        memcpy(total + n * NATIVE_LANES, &sum, sizeof sum);
    }
    return change[0];
}

// Some neighbouring positions of a span; of each some KV heads, and some query heads of each of these, `group` ones
// from `first` on.
struct Piece {
    const Span* span;
    int offset, count, head, heads, first, group;
};

// The queries of a piece, one KV head after the other: query q of a head is number q % group of position start + q /
// group. K is Keys or ScaledKeys, maybe in one plane.
template <class K>
struct QueryTile {
    typedef typename K::Model T;
    typedef typename K::Number Number;  // what keys and values are when they are multiplied
    typedef typename T::Active Active;
    // A head's running softmax state after some strips. A total is the sum of its lanes.
    struct Head {
        alignas(64) float total[QUERIES][LANES];
        float highest[QUERIES];
    };

    // Leaves the large arrays uninitialized.
    QueryTile(const K& keys, const HeadSizes& sizes, const Piece& piece)
        : keys(keys), blocks(piece.span->blocks), start(piece.span->start + piece.offset), positions(piece.count),
          heads(piece.heads), group(piece.group), window(sizes.window), whole(sizes.group()), scale(sizes.scale),
          sinks(sizes.sinks ? sizes.sinks + piece.head * whole + piece.first : nullptr), dim(sizes.value_dim),
          words(sizes.dim / Number::PER_WORD) {}

    K keys;
    const int32_t* blocks;
    int start, positions, heads, group, window, whole;
    float scale;
    const float* sinks;

    int dim, words;                          // of a value, and of a query
    uint32_t* scratch;                       // [scratch_words]
    const uint32_t* here[PIECES];            // the pieces of this strip
    const uint32_t* next[PIECES];            // the pieces that are read after them
    const uint32_t* panels[PANELS];          // the keys of this strip
    alignas(64) float scores[QUERIES][STRIP];
    alignas(64) Active weights[QUERIES][STRIP];
    alignas(64) float key_scales[STRIP], value_scales[STRIP];  // of this strip
    float correction[QUERIES];
    Head* known;                             // [heads]
    float* sums;                             // [heads][queries][dim]

    int queries() const { return positions * group; }
    int first_seen(int position) const { return window && position >= window ? position - window + 1 : 0; }
    int first_strip() const { return first_seen(start) / STRIP * STRIP; }
    int last() const { return start + positions - 1; }

    // queries [head][q][words * STEPS]. `then` is the tile that is attended after this one, or null. Each strip goes
    // head after head, in the pool's order: short runs of memory arrive slowly.
    void attend(const uint32_t* query, const QueryTile* then) {
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++) {
                // A sink is a score that was seen before all others; its weight, relative to itself, is 1.
                known[head].highest[q] = sinks ? sinks[head * whole + q % group] * LOG2_E : NOTHING;
                store(known[head].total[q], Floats{sinks ? 1.0f : 0.0f});
            }
        memset(sums, 0, sizeof(float) * heads * queries() * dim);
        locate(here, first_strip(), 0);
        for (int strip = first_strip(); strip <= last(); strip += STRIP) {
            int count = last() + 1 - strip < STRIP ? last() + 1 - strip : int(STRIP);
            for (int head = 0; head < heads; head++) {
                if (head + 1 < heads)
                    locate(next, strip, head + 1);
                else if (strip + STRIP <= last())
                    locate(next, strip + STRIP, 0);
                else if (then)
                    then->locate(next, then->first_strip(), 0);
                if constexpr (K::SCALED) keys.scales(here, key_scales, value_scales);
                score(query + size_t(head) * queries() * words * Number::STEPS, count);
                for (int q = 0; q < queries(); q++) weigh(known[head], q, strip);
                add(sums + size_t(head) * queries() * dim, count);
                memcpy(here, next, sizeof here);
            }
        }
    }

    // Missing pieces are replaced by the first one: their results are never used.
    void locate(const uint32_t** pieces, int first, int head) const {
        for (int i = 0; i < PIECES; i++) {
            int position = first + i * PIECE;
            pieces[i] = keys.at(blocks, position <= last() ? position : first) + head * keys.head_size;
        }
    }

    void score(const uint32_t* query, int count) {
        const uint32_t* ahead[PANELS];
        keys.panels(here, next, count, scratch, panels, ahead);
        const size_t stride = size_t(words) * Number::STEPS;
        for (int q = 0; q < queries(); q += QUERY_ROWS) {
            int some = queries() - q < QUERY_ROWS ? queries() - q : int(QUERY_ROWS);
            scores_of_rows<Number>(some)(query + q * stride, stride, words, panels, ahead, scores[q]);
        }
    }

    // Turns scores into weights. Most strips are seen whole.
    void weigh(Head& head, int q, int strip) {
        const int position = start + q / group;
        const int low = first_seen(position) - strip, high = position - strip;  // seen: low to high
        const bool whole_strip = low <= 0 && high >= STRIP - 1;
        auto* of_strip = whole_strip ? weigh_strip<T, K::SCALED, true> : weigh_strip<T, K::SCALED, false>;
        correction[q] = of_strip({scores[q], key_scales, value_scales, scale, low, high}, head.highest[q],
                                 head.total[q], weights[q]);
    }
    void add(float* to, int count) {
        const uint32_t *pieces[PIECES], *ahead[PIECES];
        keys.pieces(here, next, panels, count, scratch, pieces, ahead);
        const Values values{pieces, ahead, size_t(dim), count};
        for (int column = 0; column < dim; column += VALUE_PANELS * LANES) {
            int some_panels = dim - column < VALUE_PANELS * LANES ? (dim - column) / LANES : VALUE_PANELS;
            for (int q = 0; q < queries(); q += QUERY_ROWS) {
                int some = queries() - q < QUERY_ROWS ? queries() - q : int(QUERY_ROWS);
                auto* add_values = add_values_of_rows<Number>(some, some_panels);
                add_values(reinterpret_cast<const uint32_t*>(weights[q]), values, column, correction + q,
                           to + size_t(q) * dim);
            }
        }
    }

    // Writes to `result`, in which a query head of a position is at position * stride + head * head_stride.
    void finish(Active* result, size_t stride, size_t head_stride) const {
        const float* from = sums;
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++, from += dim) {
                Floats inverse = splat(1.0f / sum(load(known[head].total[q])));
                Active* to = result + (q / group) * stride + (head * whole + q % group) * head_stride;
                for (int i = 0; i < dim; i += LANES) T::store_active(to + i, load(from + i) * inverse);
            }
    }
};
