// SPDX-License-Identifier: Apache-2.0
// Where keys and values are. What a block has for one head of a layer lies as the products read it, so that nothing is
// turned round on the way: keys as packed weights are, [slot / unit][word][slot % unit], a word of which holds some
// dimensions of a key that are multiplied together; and values [slot / PER_WORD][dim][slot % PER_WORD], a word of which
// holds one dimension of neighbouring positions. A unit is 16 slots, or a whole block where that is smaller.
#pragma once
#include "kernels.h"
#include "vector.h"

// Positions whose keys and values are found by one address; every block holds some such pieces.
enum { PIECE = 8 };

// Those of one layer, from one head on.
template <class T>
struct Keys {
    typedef typename T::Cell Cell;
    Keys(const Tile& tile, int layer, int head)
        : pool(static_cast<uint32_t*>(tile.pool)), dim(tile.head_dim), words(dim / T::PER_WORD),
          shift(__builtin_ctz(tile.block_size)), unit(tile.block_size < LANES ? tile.block_size : LANES),
          head_size(tile.block_size * words), to_value(head_size * tile.kv_heads),
          block_size(2 * to_value * tile.layers), place(2 * to_value * layer + head_size * head) {}

    // The first word of a position's piece, or of its unit; of its values `to_value` further on, and of the next head's
    // `head_size`.
    uint32_t* at(const int32_t* blocks, int first) const {
        size_t slot = first & ((1 << shift) - 1);
        return pool + block_size * blocks[first >> shift] + place + slot * words;
    }

    // k, v [dim].
    void store(const int32_t* blocks, int position, const float* k, const float* v) const {
        const size_t slot = position % unit;
        Cell* key = reinterpret_cast<Cell*>(at(blocks, position - slot)) + slot * T::PER_WORD;
        uint32_t* value = at(blocks, position - position % T::PER_WORD) + to_value;
        alignas(64) Cell cells[LANES];
        for (size_t i = 0; i < dim; i += LANES) {
            T::store_cells(cells, ::load(k + i));
            for (size_t c = 0; c < LANES; c += T::PER_WORD)
                memcpy(key + (i + c) * unit, cells + c, sizeof(uint32_t));
            store_in_words(value + i, ::load(v + i), position % T::PER_WORD);
        }
    }

    // One cell in each of 16 words. The others are not touched: they may be another thread's.
    static void store_in_words(uint32_t* words, Floats x, int place) {
        alignas(64) Cell cells[LANES];
        T::store_cells(cells, x);
#if defined(__AVX512BW__)
        if (T::PER_WORD == 2) {
            __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(cells)));
            wide = _mm512_sll_epi32(wide, _mm_cvtsi32_si128(16 * place));
            return _mm512_mask_storeu_epi16(words, place ? 0xaaaaaaaa : 0x55555555, wide);
        }
#endif
        for (size_t c = 0; c < LANES; c++) reinterpret_cast<Cell*>(words + c)[place] = cells[c];
    }

    uint32_t* pool;
    size_t dim, words;
    int shift, unit;
    size_t head_size, to_value, block_size, place;
};
