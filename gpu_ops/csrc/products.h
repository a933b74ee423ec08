// SPDX-License-Identifier: Apache-2.0
// Products of rows with weights of any kind.
#pragma once
#include "quantized.h"
#if defined(PONTIL_TILES)
#include "block_tiles.h"
#include "level_tiles.h"
#else
#include "blocks.h"
#endif

// Multiplies a part's rows with the groups [first, end) of outputs of its matrix, which is in blocks.
template <class F>
static void multiply_block_part(const Part& part, int first, int end, const IntegerRows& all,
                                Scratch& scratch, Finish finish) {
#if defined(PONTIL_TILES)
    TileScope scope;
    (void)scope;
#endif
    const Matrix& matrix = *part.matrix;
    for (int start = part.row, last = part.row + part.rows; start < last; start += ROWS_TOGETHER) {
        const int count = std::min(int(ROWS_TOGETHER), last - start);
        finish.first = start;
        for (int group = first; group < end; group++) {
#if defined(PONTIL_TILES)
            float* sums = count > BLOCK_ROWS ? tile_block_sums<F>(matrix, group, all.from(start), count, scratch)
                                             : block_sums<F>(matrix, group, all.from(start), count, scratch);
#else
            float* sums = block_sums<F>(matrix, group, all.from(start), count, scratch);
#endif
            for (int row = 0; row < count; row++, sums += GROUP) {
                to_units(matrix, group * GROUP, all.units[start + row], sums);
                finish(row, group * GROUP, sums);
            }
        }
    }
}

// What lies behind a matrix of so few outputs is not what is multiplied next.
enum { FEW_OUTPUTS = 256 };

// Multiplies a part's rows with the groups [first, end) of outputs of its matrix, which has floats. `behind` is
// multiplied then; null: what lies behind the last group.
template <class T>
static void multiply_part(Context& context, const Part& part, int first, int end, const uint32_t* x, Finish finish,
                          const uint32_t* behind) {
#if defined(PONTIL_TILES)
    TileScope scope;
    (void)scope;
#endif
    const Matrix& matrix = *part.matrix;
    const size_t stride = size_t(matrix.words) * T::STEPS, size = size_t(matrix.words) * GROUP;
    const int most = context.rows_in_cache(stride * sizeof *x);
    for (int start = part.row, last = part.row + part.rows; start < last; start += most) {
        const int count = std::min(most, last - start);
        const uint32_t* some = x + start * stride;
        finish.first = start;
        for (int group = first; group < end; group++) {
            const uint32_t *weights = matrix.data + group * size, *next = weights + size;
            if (group + 1 == end && (behind || matrix.outputs <= FEW_OUTPUTS)) next = behind;
#if defined(PONTIL_TILES)
            if constexpr (std::is_same_v<T, BFloat16>) {
                multiply_tiles(matrix, group, next, some, count, finish);
                continue;
            }
#endif
            const auto multiply = is_odd(matrix, group) ? multiply_rows<T, 1> : multiply_rows<T, 2>;
            multiply(weights, next ? next : weights, matrix.words, some, count, group * GROUP, finish);
        }
    }
}

// Returns whether the matrix unit multiplies so many rows with this matrix, which takes 64 inputs at a time.
INLINE bool by_tiles(const Matrix& matrix, int rows) {
#if defined(PONTIL_TILES)
    return matrix.kind >= NIBBLES && matrix.kind < FOURS && rows >= LEAST_TILE_ROWS &&
           matrix.words % QUARTER_WORDS == 0;
#else
    return matrix.kind < 0 && rows < 0;
#endif
}

// Multiplies a part's rows with the groups [first, end) of outputs of its matrix, which has levels.
template <class Source>
static void multiply_levels(Context& context, const Part& part, int first, int end, const IntegerRows& all,
                            Scratch& scratch, Finish finish) {
#if defined(PONTIL_TILES)
    if (by_tiles(*part.matrix, part.rows)) return multiply_level_tiles<Source>(part, first, end, all, scratch, finish);
#endif
    multiply_level_part<Source>(context, part, first, end, all, scratch, finish);
}

// Computes several products at once: of `count` parts of the rows x [rows][words * STEPS], which all have as many
// inputs.
template <class T>
static void multiply_parts(Context& context, const Part* parts, int count, const uint32_t* x, int rows,
                           const Finish& finish) {
    IntegerRows integers{};
    int groups = 0;
    const bool digits = std::any_of(parts, parts + count, [](const Part& one) {
        return one.matrix->kind >= FOURS || by_tiles(*one.matrix, one.rows);
    });
    for (int i = 0; i < count; i++) {
        const Matrix& matrix = *parts[i].matrix;
        groups += padded(matrix.outputs, GROUP) / GROUP;
        if constexpr (std::is_same_v<T, BFloat16>)
            if (matrix.kind >= NIBBLES && !integers.x)
                integers = take_integer_rows<T>(context, x, rows, matrix.words, digits);
    }
    context.threads.share(groups, [&](int first, int end, int thread) {
        for (int i = 0, before = 0, own; i < count && before < end; i++, before += own) {
            const Matrix& matrix = *parts[i].matrix;
            own = padded(matrix.outputs, GROUP) / GROUP;
            const int from = std::max(first - before, 0), to = std::min(end - before, own);
            if (from >= to) continue;
            const Finish here{finish.with, finish.call, i, 0};
            [[maybe_unused]] Scratch& scratch = context.own[thread].weights;
            if constexpr (std::is_same_v<T, BFloat16>) {
                if (matrix.kind == NIBBLES && matrix.table)
                    multiply_levels<TableNibbles>(context, parts[i], from, to, integers, scratch, here);
                else if (matrix.kind == NIBBLES)
                    multiply_levels<Nibbles>(context, parts[i], from, to, integers, scratch, here);
                else if (matrix.kind == BYTES)
                    multiply_levels<Bytes>(context, parts[i], from, to, integers, scratch, here);
                else if (matrix.kind == EIGHTS)
                    multiply_levels<Eighths>(context, parts[i], from, to, integers, scratch, here);
                else if (matrix.kind == FOURS)
                    multiply_block_part<Fours>(parts[i], from, to, integers, scratch, here);
                else if (matrix.kind == SIXES)
                    multiply_block_part<Sixes>(parts[i], from, to, integers, scratch, here);
                if (matrix.kind >= NIBBLES) continue;
            }
            const uint32_t* behind = end > before + own ? parts[i + 1].matrix->data : nullptr;
            multiply_part<T>(context, parts[i], from, to, x, here, behind);
        }
    });
}

// The same, with finish(part, row, output, sums).
template <class T, class F>
static void multiply(Context& context, const Part* parts, int count, const uint32_t* x, int rows, F&& finish) {
    Finish::Call call = [](void* with, int part, int row, int output, float* sums) {
        (*static_cast<std::remove_reference_t<F>*>(with))(part, row, output, sums);
    };
    multiply_parts<T>(context, parts, count, x, rows, {&finish, call, 0, 0});
}

// The product of all rows with one matrix, with finish(row, output, sums).
template <class T, class F>
static void multiply(Context& context, const Matrix& matrix, const uint32_t* x, int rows, F&& finish) {
    const Part all{&matrix, 0, rows};
    multiply<T>(context, &all, 1, x, rows,
                [&](int, int row, int output, float* sums) { finish(row, output, sums); });
}
