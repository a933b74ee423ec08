// SPDX-License-Identifier: Apache-2.0
// The layout of keys and values of the model's type in a block; scaled_keys.h has that of 8 bits. A block stores one
// head of a layer in the order in which the products read it, so that no transposition is needed: keys like packed
// weights, [slot / unit][word][slot % unit], a word of which holds some dimensions of a key that are multiplied
// together; and values [slot / PER_WORD][dim][slot % PER_WORD], a word of which holds one dimension of neighbouring
// positions. A unit is 16 slots, or a whole block where that is smaller.
//
// In a pool of one plane, values are the first numbers of keys. They are brought into the order of values where a strip
// is attended, once for all queries that see it.
#pragma once
#include "kernels.h"
#include "numbers.h"

// Positions whose keys and values are found by one address; every block holds a whole number of such pieces.
enum { PIECE = 8 };
// Positions that are attended together.
enum { STRIP = 64, PANELS = STRIP / LANES, PIECES = STRIP / PIECE };

// The heads of one rank as attention sees them. A key has `dim` numbers, a value `value_dim`.
struct HeadSizes {
    int heads, kv_heads, dim, value_dim, layer, window;
    float scale;
    const float* sinks;
    int group() const { return heads / kv_heads; }
};

// The places of one layer's keys and values, from one head on. A slot takes `row` words in a plane.
struct Places {
    Places(const Tile& tile, const HeadSizes& sizes, int head, size_t row)
        : pool(static_cast<uint32_t*>(tile.pool)), dim(sizes.dim), value_dim(sizes.value_dim), row(row),
          shift(__builtin_ctz(tile.block_size)), unit(tile.block_size < LANES ? tile.block_size : LANES),
          head_size(tile.block_size * row), to_value(head_size * tile.kv_heads), layer_size(tile.planes * to_value),
          block_size(layer_size * tile.layers), place(layer_size * sizes.layer + head_size * head) {}

    // The first word of a position's piece, or of its unit; its values are `to_value` further on, the next head
    // `head_size`.
    uint32_t* at(const int32_t* blocks, int first) const {
        size_t slot = first & ((1 << shift) - 1);
        return pool + block_size * blocks[first >> shift] + place + slot * row;
    }

    // Prefetches a share of the memory that a later position is the first to write.
    void expect(const int32_t* blocks, int position) const {
        const size_t slots = size_t(1) << shift, slot = position % slots, size = layer_size * sizeof(uint32_t);
        const char* block = reinterpret_cast<const char*>(at(blocks, position - slot));
        for (size_t byte = size / slots * slot; byte < size / slots * (slot + 1); byte += 64)
            __builtin_prefetch(block + byte, 1, 3);
    }

    uint32_t* pool;
    size_t dim, value_dim, row;
    int shift, unit;
    size_t head_size, to_value, layer_size, block_size, place;
};

// Keys and values as numbers of the model's type.
template <class T>
struct Keys : Places {
    typedef T Model;
    typedef T Number;
    typedef typename T::Cell Cell;
    enum { SCALED = 0 };
    Keys(const Tile& tile, const HeadSizes& sizes, int head) : Places(tile, sizes, head, sizes.dim / T::PER_WORD) {}

    // Stores a key and a value, each [dim].
    void store_key(const int32_t* blocks, int position, const float* k) const {
        const size_t slot = position % unit;
        Cell* key = reinterpret_cast<Cell*>(at(blocks, position - slot)) + slot * T::PER_WORD;
        alignas(64) Cell cells[LANES];
        for (size_t i = 0; i < dim; i += LANES) {
            T::store_cells(cells, ::load(k + i));
            for (size_t c = 0; c < LANES; c += T::PER_WORD)
                memcpy(key + (i + c) * unit, cells + c, sizeof(uint32_t));
        }
    }
    void store_value(const int32_t* blocks, int position, const float* v) const {
        uint32_t* value = at(blocks, position - position % T::PER_WORD) + to_value;
        for (size_t i = 0; i < dim; i += LANES) store_in_words(value + i, ::load(v + i), position % T::PER_WORD);
    }

    // Stores one cell in each of 16 words, whose other cell belongs to the neighbouring position.
    static void store_in_words(uint32_t* words, Floats x, int place) {
        if constexpr (T::PER_WORD == 1) {
            T::store_cells(reinterpret_cast<Cell*>(words), x);
        } else {
            Halves cells;
            T::store_cells(reinterpret_cast<Cell*>(&cells), x);
            const Words wide = __builtin_convertvector(cells, Words) << (16 * place);
            const Words others = load_words(words) & splat(place ? 0x0000ffffu : 0xffff0000u);
            store_words(words, wide | others);
        }
    }

    // A strip's panels of 16 keys in the form in which they are multiplied, and what is prefetched meanwhile. `here`
    // and `next` are the pieces of a strip and of the one that is read after it; `scratch` holds scratch_words().
    size_t scratch_words() const { return STRIP * row; }
    void panels(const uint32_t* const* here, const uint32_t* const* next, int, uint32_t* scratch, const uint32_t** all,
                const uint32_t** ahead) const {
        for (int p = 0; p < PANELS; p++) {
            all[p] = unit == LANES ? here[2 * p] : join(here + 2 * p, scratch + p * row * LANES);
            ahead[p] = next[2 * p];
        }
    }
    // Joins two units of 8 keys into one panel.
    const uint32_t* join(const uint32_t* const* units, uint32_t* to) const {
        for (int half = 0; half < 2; half++)
            for (size_t word = 0; word < row; word++)
                memcpy(to + word * LANES + half * PIECE, units[half] + word * PIECE, PIECE * sizeof *to);
        return to;
    }

    // The same of a strip's pieces of values. `panels` are those of its keys.
    void pieces(const uint32_t* const* here, const uint32_t* const* next, const uint32_t* const*, int, uint32_t*,
                const uint32_t** all, const uint32_t** ahead) const {
        for (int i = 0; i < PIECES; i++) all[i] = here[i] + to_value, ahead[i] = next[i] + to_value;
    }
};
