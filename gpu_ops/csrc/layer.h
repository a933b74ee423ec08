// SPDX-License-Identifier: Apache-2.0
// The attention and MLP halves of a layer, from residual stream to residual stream.
#pragma once
#include <algorithm>

#include "adapters.h"
#include "pieces.h"
#include "rows.h"

// Rows hidden [rows][size], the next one `apart` numbers behind each (0: its size), as activations.
template <class T>
static const uint32_t* take_rows(Context& context, const float* hidden, int rows, int size, const float* norm,
                                 float epsilon, int words, size_t apart = 0) {
    const size_t stride = size_t(words) * T::STEPS, step = apart ? apart : size;
    uint32_t* x = context.inputs.take<uint32_t>((rows + ROWS_BEHIND) * stride);
    context.threads.share(rows, [&](int first, int end, int) {
        for (int row = first; row < end; row++)
            take_row<T>(hidden + row * step, norm, epsilon, size, x + row * stride, words);
    });
    return x;
}

// The columns of rows that this rank computes: all of them, or an equal share, from `first` on, of rows in memory that
// all ranks of a group write and then read whole.
struct Share {
    RankGroup* group = nullptr;
    size_t first = 0;
    bool is_last = true;

    Share(Context& context, int columns, int all) {
        if (columns == all) return;
        group = context.group;
        if (!group || columns * group->ranks != all) throw GroupError{NOT_JOINED};
        first = size_t(columns) * group->rank, is_last = group->rank + 1 == group->ranks;
    }
    template <class C>
    C* take(Scratch& own, size_t count) const {
        return group ? group->take<C>(count) : own.take<C>(count);
    }
    // Until then other ranks' columns are not there.
    void complete(int rows, int columns) const {
        if (group) group->meet(RankGroup::shape(3, rows, columns));
    }
};

// Rows [rows][size] that are added to the residual stream: this process's, or the sums of parts that all ranks of a
// group have, each in a place of its own in their memory. They are added in the order of ranks.
struct PartialRows {
    PartialRows(Context& context, int rows, int size) : group(context.group), rows(rows), size(size) {
        if (!group) throw GroupError{NOT_JOINED};
        parts = group->take<float>(group->ranks * apart());
    }
    float* own() const { return parts + group->rank * apart(); }
    // Until then other ranks' parts are not there.
    void complete() const { group->meet(RankGroup::shape(4, rows, size)); }
    void sum(size_t row, float* to) const {
        const float* part = parts + row * size;
        for (int i = 0; i < size; i += LANES) {
            Floats total = load(part + i);
            for (int rank = 1; rank < group->ranks; rank++) total = total + load(part + rank * apart() + i);
            store(to + i, total);
        }
    }

  private:
    size_t apart() const { return size_t(rows) * size; }
    RankGroup* group;
    int rows, size;
    float* parts;
};

// hidden [rows][size] += rows that `row_of(row, spare)` returns, normed first if `after` is not null. `spare` [size] is
// a thread's.
template <class F>
static void add_rows(Context& context, int rows, int size, const float* after, float epsilon, float* hidden,
                     F&& row_of) {
    context.threads.share(rows, [&](int first, int end, int thread) {
        float* spare = context.own[thread].query.take<float>(size);
        for (size_t row = first; row < size_t(end); row++) {
            const float* made = row_of(row, spare);
            if (after)
                add_normed(made, after, epsilon, size, hidden + row * size);
            else
                add_row(made, size, hidden + row * size);
        }
    });
}

// The same, of the sums of all ranks' parts.
template <class T>
static void add_partial_product(Context& context, const Matrix& matrix, const Finished<T>& finished, const uint32_t* x,
                                int rows, int size, const float* after, float epsilon, float* hidden) {
    const PartialRows made(context, rows, size);
    float* own = made.own();
    multiply<T>(context, matrix, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        memcpy(own + size_t(row) * size + output, sums, std::min(int(GROUP), size - output) * sizeof(float));
    });
    made.complete();
    add_rows(context, rows, size, after, epsilon, hidden, [&](size_t row, float* spare) {
        made.sum(row, spare);
        return spare;
    });
}

// hidden [rows][size] += matrix x, normed first if `after` is not null.
template <class T>
static void add_product(Context& context, const Matrix& matrix, const uint32_t* x, int rows, int size,
                        const float* after, float epsilon, float* hidden, const int32_t* chosen) {
    const Finished<T> finished(context, matrix, x, rows, chosen);
    if (matrix.partial)
        return add_partial_product<T>(context, matrix, finished, x, rows, size, after, epsilon, hidden);
    const Share share(context, matrix.outputs, size);
    if (!after && !share.group) {
        multiply<T>(context, matrix, x, rows, [&](int row, int output, float* sums) {
            finished(row, output, sums);
            float* to = hidden + size_t(row) * size + output;
            for (int i = 0; i < GROUP && output + i < size; i += LANES) store(to + i, load(to + i) + load(sums + i));
        });
        return;
    }
    float* made = share.take<float>(context.narrow, size_t(rows) * size);
    multiply<T>(context, matrix, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        const int count = std::min(int(GROUP), matrix.outputs - output);
        memcpy(made + size_t(row) * size + share.first + output, sums, count * sizeof(float));
    });
    share.complete(rows, size);
    add_rows(context, rows, size, after, epsilon, hidden, [&](size_t row, float*) { return made + row * size; });
}

// Norms and rotates heads in place, then stores keys and values into the pool and queries to [row][head][dim].
template <class K>
static void place_heads(const AttentionHalf& half, const HeadSizes& sizes, const Tile& tile, const Span& span,
                        int offset, float* qkv, float* spare, typename K::Model::Active* queries) {
    const int dim = half.head_dim, position = span.start + offset;
    Rotation rotation = half.rotation;
    if (tile.cosines) rotation.cosines = tile.cosines, rotation.sines = tile.sines;
    const int angle = tile.cosines ? span.row + offset : position;
    for (int head = 0; head < half.heads + half.kv_heads; head++) {
        float* x = qkv + head * dim;
        norm_head(x, head < half.heads ? half.query_norm : half.key_norm, half.epsilon, dim);
        turn(rotation, angle, x, spare);
        if (head < half.heads)
            for (int i = 0; i < dim; i += LANES) K::Model::store_active(queries + head * dim + i, load(x + i));
    }
    for (int head = 0; head < half.kv_heads; head++) {
        const float* k = qkv + (half.heads + head) * dim;
        const K keys(tile, sizes, head);
        keys.store_key(span.blocks, position, k);
        keys.store_value(span.blocks, position, k + half.kv_heads * dim);
    }
    if (offset + tile.block_size < span.count) K(tile, sizes, 0).expect(span.blocks, position + tile.block_size);
}

// Stores keys and values of all rows, then attends. qkv is [rows][stride].
template <class K>
static void attend_rows(Context& context, const AttentionHalf& half, const Tile& tile, float* qkv, size_t stride,
                        typename K::Model::Active* attended) {
    const HeadSizes sizes{half.heads, half.kv_heads, half.head_dim, half.head_dim, half.layer, half.window, half.scale,
                          half.sinks};
    const size_t size = size_t(half.heads) * half.head_dim;
    auto* queries = context.queries.take<typename K::Model::Active>(tile.rows * size);
    context.threads.share(tile.span_count, [&](int first, int end, int thread) {
        float* spare = context.own[thread].query.take<float>(half.head_dim);
        for (int i = first; i < end; i++)
            for (int offset = 0; offset < tile.spans[i].count; offset++) {
                const size_t row = tile.spans[i].row + offset;
                place_heads<K>(half, sizes, tile, tile.spans[i], offset, qkv + row * stride, spare,
                               queries + row * size);
            }
    });
    if (!half.heads) return;
    const size_t cells = size_t(half.out.words) * K::Model::PER_WORD;
    attend_queries<K>(context, sizes, tile, queries, attended, cells, half.head_dim);
}

// Multiplies rows [rows][cells], the first `size` of each, by the sigmoids of their gates [rows][stride].
template <class T>
static void gate_rows(Context& context, int rows, int size, const float* gates, size_t stride,
                      typename T::Active* attended, size_t cells) {
    context.threads.share(rows, [&](int first, int end, int) {
        for (size_t row = first; row < size_t(end); row++)
            for (int i = 0; i < size; i += LANES) {
                typename T::Active* to = attended + row * cells + i;
                T::store_active(to, T::load_active(to) * sigmoid(load(gates + row * stride + i)));
            }
    });
}

template <class T>
static void attention_half(Context& context, const AttentionHalf& half, const Tile& tile, float* hidden) {
    typedef typename T::Active Active;
    const int rows = tile.rows;
    const size_t stride = padded(half.qkv.outputs, GROUP);
    const uint32_t* x = take_rows<T>(context, hidden, rows, half.hidden, half.before, half.epsilon, half.qkv.words);
    float* qkv = context.wide.take<float>(rows * stride);
    const Finished<T> finished(context, half.qkv, x, rows, tile.adapters);
    multiply<T>(context, half.qkv, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        memcpy(qkv + row * stride + output, sums, GROUP * sizeof(float));
    });
    auto attend = tile.cells == CELLS_INT8  ? attend_rows<ScaledKeys<T, Int8>>
                  : tile.cells == CELLS_FP8 ? attend_rows<ScaledKeys<T, Float8>>
                                            : attend_rows<Keys<T>>;
    if (!half.heads) return attend(context, half, tile, qkv, stride, nullptr);
    const Share share(context, half.heads * half.head_dim, half.out.inputs);
    const size_t cells = size_t(half.out.words) * T::PER_WORD;
    Active* attended = share.take<Active>(context.attended, (rows + ROWS_BEHIND) * cells);
    attend(context, half, tile, qkv, stride, attended + share.first);
    const int size = half.heads * half.head_dim, behind = size + 2 * half.kv_heads * half.head_dim;
    if (half.gated) gate_rows<T>(context, rows, size, qkv + behind, stride, attended + share.first, cells);
    if (share.is_last) clear_padding(attended, rows, half.out.inputs, cells);
    share.complete(rows, half.out.inputs);
    add_product<T>(context, half.out, reinterpret_cast<const uint32_t*>(attended), rows, half.hidden, half.after,
                   half.epsilon, hidden, tile.adapters);
}

// Makes 16 activations of as many gates, and ups behind them.
template <class T>
INLINE void activate(const MlpHalf& half, const float* sums, typename T::Active* to) {
    for (int i = 0; i < LANES; i += NATIVE_LANES) {
        Native gate = (Native)load_native(sums + i), up = (Native)load_native(sums + LANES + i);
        if (half.activation == CLAMPED) {
            const Native limit = Native{} + half.limit;
            gate = min(gate, limit), up = max(min(up, limit), -limit) + 1.0f;
            T::store_active(to + i, gate * sigmoid(gate * half.alpha) * up);
        } else {
            T::store_active(to + i, (half.activation == SILU ? silu(gate) : gelu_tanh(gate)) * up);
        }
    }
}

template <class T>
static void mlp_half(Context& context, const MlpHalf& half, int rows, const float* from, float* result,
                     const int32_t* chosen) {
    typedef typename T::Active Active;
    const uint32_t* x = take_rows<T>(context, from, rows, half.hidden, half.before, half.epsilon, half.gate_up.words);
    const Share share(context, half.inner, half.down.inputs);
    const size_t cells = size_t(half.down.words) * T::PER_WORD;
    Active* inner = share.take<Active>(context.wide, (rows + ROWS_BEHIND) * cells);
    if (share.is_last) clear_padding(inner, rows, half.down.inputs, cells);
    const Finished<T> finished(context, half.gate_up, x, rows, chosen);
    multiply<T>(context, half.gate_up, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        activate<T>(half, sums, inner + row * cells + share.first + output / 2);
    });
    share.complete(rows, half.down.inputs);
    add_product<T>(context, half.down, reinterpret_cast<const uint32_t*>(inner), rows, half.hidden, half.after,
                   half.epsilon, result, chosen);
}

// The highest of a group's real outputs, without padding; NaN is taken for minus infinity.
INLINE float highest_of_group(const Matrix& matrix, int output, const float* sums) {
    if (output + GROUP <= matrix.outputs) {
        Native most = all_lanes(-INFINITY);
        for (int i = 0; i < GROUP; i += NATIVE_LANES) most = max((Native)load_native(sums + i), most);
        return highest(most);
    }
    float best = -INFINITY;
    for (int i = 0; i < matrix.outputs - output; i++) best = sums[i] > best ? sums[i] : best;
    return best;
}

template <class T>
static void linear(Context& context, const Matrix& matrix, int rows, const float* x, const float* norm, float epsilon,
                   float* result, int64_t* best, float* tops) {
    const size_t stride = padded(matrix.outputs, GROUP), groups = stride / GROUP;
    const uint32_t* cells = take_rows<T>(context, x, rows, matrix.inputs, norm, epsilon, matrix.words);
    multiply<T>(context, matrix, cells, rows, [&](int row, int output, float* sums) {
        add_bias(matrix, output, sums);
        memcpy(result + row * stride + output, sums, GROUP * sizeof(float));
        if (tops) tops[row * groups + output / GROUP] = highest_of_group(matrix, output, sums);
    });
    if (!best) return;
    // The first of the highest groups has the first of the highest outputs.
    for (int row = 0; row < rows; row++) {
        const float* top = std::max_element(tops + row * groups, tops + (row + 1) * groups);
        size_t output = (top - (tops + row * groups)) * GROUP;
        while (output + 1 < size_t(matrix.outputs) && result[row * stride + output] != *top) output++;
        best[row] = int64_t(output);
    }
}
