// SPDX-License-Identifier: Apache-2.0
// Latent attention, with both products of its heads absorbed: the heads share one KV head, whose keys are the stored
// vectors and whose values are their first numbers.
#pragma once
#include "layer.h"

// One part for each head, of rows [head][rows].
static std::vector<Part> parts_of_heads(const Matrix* matrices, int heads, int rows) {
    std::vector<Part> parts;
    for (int head = 0; head < heads; head++) parts.push_back({matrices + head, head * rows, rows});
    return parts;
}

// Norms and turns the rows' latents [rows][stride] in place, and stores them.
template <class K>
static void store_latents(Context& context, const LatentHalf& half, const HeadSizes& sizes, const Tile& tile,
                          float* latents, size_t stride) {
    context.threads.share(tile.span_count, [&](int first, int end, int thread) {
        float* spare = context.own[thread].query.take<float>(half.rotation.dim);
        const K keys(tile, sizes, 0);
        for (const Span* span = tile.spans + first; span < tile.spans + end; span++)
            for (int offset = 0; offset < span->count; offset++) {
                float* x = latents + size_t(span->row + offset) * stride;
                const int position = span->start + offset, later = offset + tile.block_size;
                norm_head(x, half.key_norm, half.latent_epsilon, half.rank);
                turn(half.rotation, position, x + half.rank, spare);
                keys.store_key(span->blocks, position, x);
                if (later < span->count) keys.expect(span->blocks, span->start + later);
            }
    });
}

// From asked [rows][stride], heads' queries one after the other, to queries [row][head][dim], of which the absorbed
// product makes the first numbers.
template <class T>
static const typename T::Active* absorb(Context& context, const LatentHalf& half, const HeadSizes& sizes,
                                        const Tile& tile, float* asked, size_t stride) {
    typedef typename T::Active Active;
    const int rows = tile.rows, heads = half.heads, dim = half.key_dim + half.rotation.dim;
    const size_t cells = size_t(half.absorb->words) * T::PER_WORD;
    Active* queries = context.queries.take<Active>(size_t(rows) * heads * sizes.dim);
    Active* straight = context.heads.take<Active>((size_t(heads) * rows + ROWS_BEHIND) * cells);
    std::vector<int> positions(rows);
    for (const Span* span = tile.spans; span < tile.spans + tile.span_count; span++)
        for (int offset = 0; offset < span->count; offset++) positions[span->row + offset] = span->start + offset;
    context.threads.share(rows, [&](int first, int end, int thread) {
        float* spare = context.own[thread].query.take<float>(half.rotation.dim);
        for (int row = first; row < end; row++)
            for (int head = 0; head < heads; head++) {
                float* x = asked + row * stride + head * dim;
                Active* own = straight + (size_t(head) * rows + row) * cells;
                for (int i = 0; i < half.key_dim; i += LANES) T::store_active(own + i, load(x + i));
                memset(own + half.key_dim, 0, (cells - half.key_dim) * sizeof(Active));
                turn(half.rotation, positions[row], x + half.key_dim, spare);
                Active* turned = queries + (size_t(row) * heads + head) * sizes.dim + half.rank;
                for (int i = 0; i < half.rotation.dim; i += LANES)
                    T::store_active(turned + i, load(x + half.key_dim + i));
            }
    });
    const std::vector<Part> parts = parts_of_heads(half.absorb, heads, rows);
    multiply<T>(context, parts.data(), heads, reinterpret_cast<const uint32_t*>(straight), heads * rows,
                [&](int head, int row, int output, float* sums) {
                    Active* to = queries + (size_t(row - head * rows) * heads + head) * sizes.dim;
                    for (int i = output; i < std::min(output + GROUP, half.rank); i += LANES)
                        T::store_active(to + i, load(sums + i - output));
                });
    return queries;
}

// Makes values of the heads' weighted latents [head][row][cells of expand], in a row's cells of `out` from `to` on.
template <class T>
static void expand(Context& context, const LatentHalf& half, int rows, const typename T::Active* attended,
                   typename T::Active* to, size_t stride) {
    const std::vector<Part> parts = parts_of_heads(half.expand, half.heads, rows);
    multiply<T>(context, parts.data(), half.heads, reinterpret_cast<const uint32_t*>(attended), half.heads * rows,
                [&](int head, int row, int output, float* sums) {
                    auto* value = to + (row - head * rows) * stride + head * half.value_dim;
                    for (int i = output; i < std::min(output + GROUP, half.value_dim); i += LANES)
                        T::store_active(value + i, load(sums + i - output));
                });
}

// The queries of all heads, one after the other: numbers [rows][stride].
struct Asked {
    float* numbers;
    size_t stride;
};

// What the query product makes of the first product's rows.
template <class T>
static Asked ask(Context& context, const LatentHalf& half, int rows, const Asked& first, const int32_t* chosen) {
    const uint32_t* x = take_rows<T>(context, first.numbers, rows, half.down.outputs, half.query_norm,
                                     half.latent_epsilon, half.query.words, first.stride);
    const size_t stride = padded(half.query.outputs, GROUP);
    float* made = context.wide.take<float>(rows * stride);
    const Finished<T> finished(context, half.query, x, rows, chosen);
    multiply<T>(context, half.query, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        memcpy(made + row * stride + output, sums, GROUP * sizeof(float));
    });
    return {made, stride};
}

// The operations that depend on the cells of the pool.
template <class T>
struct LatentCells {
    typedef typename T::Active Active;
    template <class K>
    static LatentCells of() {
        return {store_latents<K>, attend_queries<K>};
    }
    static LatentCells of(int cells) {
        return cells == CELLS_INT8  ? of<OnePlane<ScaledKeys<T, Int8>>>()
               : cells == CELLS_FP8 ? of<OnePlane<ScaledKeys<T, Float8>>>()
                                    : of<OnePlane<Keys<T>>>();
    }
    void (*store)(Context&, const LatentHalf&, const HeadSizes&, const Tile&, float*, size_t);
    void (*attend)(Context&, const HeadSizes&, const Tile&, const Active*, Active*, size_t, size_t);
};

template <class T>
static void latent_half(Context& context, const LatentHalf& half, const Tile& tile, float* hidden) {
    typedef typename T::Active Active;
    const int rows = tile.rows, dim = half.rank + half.rotation.dim;
    const HeadSizes sizes{half.heads, 1, dim, half.rank, half.layer, half.window, half.scale, nullptr};
    const Matrix& first = half.down.data ? half.down : half.query;
    const size_t stored = padded(half.compress.outputs, GROUP), stride = padded(first.outputs, GROUP);
    const uint32_t* x =
        take_rows<T>(context, hidden, rows, half.hidden, half.before, half.epsilon, half.compress.words);
    float* latents = context.narrow.take<float>(rows * stored);
    Asked asked{context.wide.take<float>(rows * stride), stride};
    const Part parts[] = {{&half.compress, 0, rows}, {&first, 0, rows}};
    const Finished<T> finished[] = {{context, half.compress, x, rows, tile.adapters},
                                    {context, first, x, rows, half.heads ? tile.adapters : nullptr}};
    multiply<T>(context, parts, half.heads ? 2 : 1, x, rows, [&](int part, int row, int output, float* sums) {
        finished[part](row, output, sums);
        float* to = part ? asked.numbers + row * stride : latents + row * stored;
        memcpy(to + output, sums, GROUP * sizeof(float));
    });
    const LatentCells<T> cells = LatentCells<T>::of(tile.cells);
    cells.store(context, half, sizes, tile, latents, stored);
    if (!half.heads) return;
    if (half.down.data) asked = ask<T>(context, half, rows, asked, tile.adapters);
    const Active* queries = absorb<T>(context, half, sizes, tile, asked.numbers, asked.stride);
    const size_t inner = size_t(half.expand->words) * T::PER_WORD, wide = size_t(half.out.words) * T::PER_WORD;
    Active* attended = context.heads.take<Active>((size_t(half.heads) * rows + ROWS_BEHIND) * inner);
    clear_padding(attended, half.heads * rows, half.rank, inner);
    cells.attend(context, sizes, tile, queries, attended, inner, rows * inner);
    const Share share(context, half.heads * half.value_dim, half.out.inputs);
    Active* values = share.take<Active>(context.attended, (rows + ROWS_BEHIND) * wide);
    expand<T>(context, half, rows, attended, values + share.first, wide);
    if (share.is_last) clear_padding(values, rows, half.out.inputs, wide);
    share.complete(rows, half.out.inputs);
    add_product<T>(context, half.out, reinterpret_cast<const uint32_t*>(values), rows, half.hidden, half.after,
                   half.epsilon, hidden, tile.adapters);
}
