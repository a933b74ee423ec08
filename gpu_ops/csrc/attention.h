// SPDX-License-Identifier: Apache-2.0
// Paged attention. A query goes through the keys it sees in strips of STRIP positions aligned to the beginning of the
// text, with a running maximum (Milakov and Gimelshein, 2018; Dao et al., 2022). Batch-invariant: a query's own numbers
// go through the same operations in the same order for any other queries beside it; a strip or a key that it does not
// see adds exact zeros.
#pragma once
#include "one_plane.h"
#include "strip_products.h"
#if defined(PONTIL_TILES)
#include "attention_tiles.h"
#else
template <class T>
using StripProducts = VectorProducts<T>;
#endif

// Below any score, and finite, so that differences with it are numbers.
constexpr float NOTHING = -1e30f;
constexpr float LOG2_E = 1.4426950408889634f;

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
    const float top_so_far = highest(best);
    const Native top = all_lanes(top_so_far);
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
    // Rarely there is a higher score: what was before stays as it is, as if multiplied by 1.
    float change = 1.0f;
    if (top_so_far != highest_so_far) {
        change = highest_so_far > NOTHING ? exp2(before - top)[0] : 0.0f;
        highest_so_far = top_so_far;
    }
    for (int n = 0; n < NATIVES; n++) {
        const Native sum = (Native)load_native(total + n * NATIVE_LANES) * change + share[n];
        memcpy(total + n * NATIVE_LANES, &sum, sizeof sum);
    }
    return change;
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
    typedef StripProducts<Number> Products;
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
          words(sizes.dim / Number::PER_WORD), query_words(Products::query_words(words)),
          sum_words(Products::sum_words(dim)) {}

    K keys;
    const int32_t* blocks;
    int start, positions, heads, group, window, whole;
    float scale;
    const float* sinks;

    int dim, words, query_words, sum_words;  // of a value, a key, a query, and the sums of a query
    uint32_t* scratch;                       // [scratch_words()]
    const uint32_t* here[PIECES];            // the pieces of this strip
    const uint32_t* next[PIECES];            // the pieces that are read after them
    Products products;                       // with this strip
    alignas(64) float scores[QUERIES][STRIP];
    alignas(64) Active weights[QUERIES][STRIP];
    alignas(64) float key_scales[STRIP], value_scales[STRIP];  // of this strip
    float correction[QUERIES];
    Head* known;  // [heads]
    float* sums;  // [heads][rows()][sum_words]

    int queries() const { return positions * group; }
    int rows() const { return padded(queries(), Products::ROWS); }
    // Where keys are multiplied again after values, both need a place.
    size_t value_scratch() const { return int(Products::PART) < QUERIES ? keys.scratch_words() : 0; }
    size_t scratch_words() const {
        return keys.scratch_words() + value_scratch() + Products::scratch_words(words, dim);
    }
    int first_seen(int position) const { return window && position >= window ? position - window + 1 : 0; }
    int first_strip() const { return first_seen(start) / STRIP * STRIP; }
    int last() const { return start + positions - 1; }

    // queries [head][rows()][query_words]. `then` is the tile that is attended after this one, or null. Each strip goes
    // head after head.
    void attend(const uint32_t* query, const QueryTile* then) {
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++) {
                // A sink is a score that was seen before all others; its weight, relative to itself, is 1.
                known[head].highest[q] = sinks ? sinks[head * whole + q % group] * LOG2_E : NOTHING;
                store(known[head].total[q], Floats{sinks ? 1.0f : 0.0f});
            }
        memset(sums, 0, sizeof(float) * heads * rows() * sum_words);
        locate(here, first_strip(), 0);
        for (int strip = first_strip(); strip <= last(); strip += STRIP)
            for (int head = 0; head < heads; head++) {
                if (head + 1 < heads)
                    locate(next, strip, head + 1);
                else if (strip + STRIP <= last())
                    locate(next, strip + STRIP, 0);
                else if (then)
                    then->locate(next, then->first_strip(), 0);
                if constexpr (K::SCALED) keys.scales(here, key_scales, value_scales);
                attend_strip(query, head, strip);
                memcpy(here, next, sizeof here);
            }
    }

    // Missing pieces are replaced by the first one: their results are never used.
    void locate(const uint32_t** pieces, int first, int head) const {
        for (int i = 0; i < PIECES; i++) {
            int position = first + i * PIECE;
            pieces[i] = keys.at(blocks, position <= last() ? position : first) + head * keys.head_size;
        }
    }

    void attend_strip(const uint32_t* query, int head, int strip) {
        const int valid = std::min(last() + 1 - strip, int(STRIP));
        KeyPanels panels{{}, {}, words};
        keys.panels(here, next, valid, scratch, panels.panels, panels.ahead);
        products.take(panels, scratch + keys.scratch_words() + value_scratch());
        for (int q = 0; q < queries(); q += Products::PART) {
            const int count = std::min(queries() - q, int(Products::PART));
            const size_t row = size_t(head) * rows() + q;
            products.score(query + row * query_words, count, scores[q]);
            weigh(known[head], q, count, strip);
            if (q == 0) {
                Values values{{}, {}, dim, valid};
                keys.pieces(here, next, panels.panels, valid, scratch + value_scratch(), values.pieces, values.ahead);
                products.take(values);
            }
            products.add(reinterpret_cast<const uint32_t*>(weights[q]), count, correction + q, sums + row * sum_words);
        }
    }

    // Turns scores into weights. Most strips are seen whole.
    void weigh(Head& head, int q, int count, int strip) {
        for (const int end = q + count; q < end;) {
            const int position = start + q / group;
            const int low = first_seen(position) - strip, high = position - strip;  // seen: low to high
            const bool whole_strip = low <= 0 && high >= STRIP - 1;
            auto* of_strip = whole_strip ? weigh_strip<T, K::SCALED, true> : weigh_strip<T, K::SCALED, false>;
            for (const int next = std::min(end, q + group - q % group); q < next; q++)
                correction[q] = of_strip({scores[q], key_scales, value_scales, scale, low, high}, head.highest[q],
                                         head.total[q], weights[q]);
        }
    }

    // Writes to `result`, in which a query head of a position is at position * stride + head * head_stride.
    void finish(Active* result, size_t stride, size_t head_stride) const {
        for (int head = 0; head < heads; head++)
            for (int q = 0; q < queries(); q++) {
                const float* from = sums + (size_t(head) * rows() + q) * sum_words;
                Floats inverse = splat(1.0f / sum(load(known[head].total[q])));
                Active* to = result + (q / group) * stride + (head * whole + q % group) * head_stride;
                for (int i = 0; i < dim; i += LANES) T::store_active(to + i, load(from + i) * inverse);
            }
    }
};
