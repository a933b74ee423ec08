// SPDX-License-Identifier: Apache-2.0
// The layout of keys and values of 8 bits in a block. A block has bytes for a head: keys [slot / unit] of [dim][unit]
// cells and the unit's scales [unit]; values [slot / 8] of [8][dim] cells and the piece's scales [8]. A scale is a
// float32 number, and a unit is as in kv_layout.h.
//
// A strip's cells become numbers that can be multiplied once, in the nearest cache, for all queries that see it. Scales
// are multiplied with what belongs to a position anyway: its score, and its weight.
#pragma once
#include "cells.h"
#include "kv_layout.h"

template <class T, class C>
struct ScaledKeys : Places {
    typedef T Model;
    typedef typename T::Wide Number;
    enum { SCALED = 1 };
    ScaledKeys(const Tile& tile, const HeadSizes& sizes, int head)
        : Places(tile, sizes, head, sizes.dim / 4 + 1), words(sizes.dim / 4) {}

    // Stores a key and a value, each [dim].
    void store_key(const int32_t* blocks, int position, const float* k) const {
        const size_t slot = position % unit;
        uint32_t* keys = at(blocks, position - slot);
        const Scale<C> scale(k, dim);
        int8_t* key = reinterpret_cast<int8_t*>(keys) + slot;
        for (size_t i = 0; i < dim; i += LANES) {
            int8_t cells[LANES];
            scale.narrow(k + i, cells);
            for (int c = 0; c < LANES; c++) key[(i + c) * unit] = cells[c];
        }
        memcpy(keys + unit * words + slot, &scale.scale, sizeof scale.scale);
    }
    void store_value(const int32_t* blocks, int position, const float* v) const {
        const size_t line = position % PIECE;
        uint32_t* values = at(blocks, position - line) + to_value;
        const Scale<C> scale(v, dim);
        int8_t* value = reinterpret_cast<int8_t*>(values) + line * dim;
        for (size_t i = 0; i < dim; i += LANES) scale.narrow(v + i, value + i);
        memcpy(values + PIECE * words + line, &scale.scale, sizeof scale.scale);
    }

    // As in Keys, for the first `count` positions of a strip. Behind the panels there is room for cells.
    size_t scratch_words() const { return STRIP * (dim / Number::PER_WORD) + LANES / 4 * dim; }
    void panels(const uint32_t* const* here, const uint32_t* const* next, int count, uint32_t* scratch,
                const uint32_t** all, const uint32_t** ahead) const {
        const size_t size = dim / Number::PER_WORD * LANES;
        for (int p = 0; p < PANELS; p++) {
            all[p] = ahead[p] = p * LANES < count ? scratch + p * size : scratch;
            if (p * LANES >= count) continue;
            const int8_t* cells = unit == LANES ? bytes(here[2 * p]) : join(here + 2 * p, scratch + PANELS * size);
            __builtin_prefetch(next[2 * p] + unit * words, 0, 3);
            widen_rows<Number, C>(cells, int(dim), LANES, bytes(next[2 * p]), scratch + p * size);
        }
    }
    const int8_t* join(const uint32_t* const* units, uint32_t* joined) const {
        int8_t* to = reinterpret_cast<int8_t*>(joined);
        for (int half = 0; half < 2; half++) {
            const int8_t* from = bytes(units[half]);
            for (size_t i = 0; i < dim; i++) memcpy(to + i * LANES + half * PIECE, from + i * PIECE, PIECE);
        }
        return to;
    }
    void pieces(const uint32_t* const* here, const uint32_t* const* next, const uint32_t* const*, int count,
                uint32_t* scratch, const uint32_t** all, const uint32_t** ahead) const {
        const size_t size = dim / Number::PER_WORD * PIECE;
        for (int i = 0; i < PIECES; i++) {
            all[i] = ahead[i] = i * PIECE < count ? scratch + i * size : scratch;
            if (i * PIECE >= count) continue;
            widen_rows<Number, C>(bytes(here[i] + to_value), PIECE, dim, bytes(next[i] + to_value), scratch + i * size);
        }
    }

    // The scales of a strip's keys and values, each [STRIP]; those of positions that were never written may be NaN.
    void scales(const uint32_t* const* here, float* keys, float* values) const {
        scales_of_keys(here, keys);
        for (int i = 0; i < PIECES; i++)
            memcpy(values + i * PIECE, here[i] + to_value + PIECE * words, PIECE * sizeof *values);
    }
    void scales_of_keys(const uint32_t* const* here, float* keys) const {
        for (int i = 0; i < PIECES; i++) {
            const int first = unit == LANES ? i / 2 * 2 : i;
            memcpy(keys + i * PIECE, here[first] + unit * words + (i - first) * PIECE, PIECE * sizeof *keys);
        }
    }

    static const int8_t* bytes(const uint32_t* words) { return reinterpret_cast<const int8_t*>(words); }

    size_t words;  // of cells of a slot
};
