// SPDX-License-Identifier: Apache-2.0
// Recurrent layers: the gated delta rule (Yang et al., 2024) behind a short convolution. Positions are taken in one
// after the other, and a column of a head's matrix knows nothing of the others: so a row's bits are the same for any
// cutting, company, division and number of threads.
#pragma once
#include <cmath>

#include "layer.h"

// Rows of a span that go through the convolution and then through each part of a state.
constexpr int RUN_ROWS = 32;
constexpr float UNIT_EPSILON = 1e-6f;

// The numbers of a row that belong to one key head: its query, its key and the values of the heads that share it.
struct KeyHead {
    KeyHead(const RecurrentHalf& half, int head)
        : head(head), shared(half.value_heads / half.key_heads), key_dim(half.key_dim),
          values(shared * half.value_dim), size(2 * key_dim + values), keys(half.key_heads * key_dim),
          channels(2 * keys + half.value_heads * half.value_dim),
          matrices(size_t(half.value_heads) * key_dim * half.value_dim) {}
    // Calls f(channel, place, count) for the runs of channels that are this head's, with their places among its own.
    template <class F>
    void runs(F&& f) const {
        f(head * key_dim, 0, key_dim);
        f(keys + head * key_dim, key_dim, key_dim);
        f(2 * keys + head * values, 2 * key_dim, values);
    }
    const int head, shared, key_dim, values, size, keys, channels;
    const size_t matrices;
};

// A layer's state: the matrices [value_heads][key_dim][value_dim], then the channels of the last positions.
static float* state_of(const RecurrentHalf& half, const Tile& tile, const KeyHead& own, int block) {
    const size_t numbers = own.matrices + size_t(half.width - 1) * own.channels;
    return tile.states + size_t(block) * tile.state_stride + half.layer * numbers;
}

// Convolves this head's channels of `rows` rows into mixed [rows][size], behind those of the state `before` (null:
// there are none), and keeps the last ones in `after`. `lines` [width - 1 + rows][size] is scratch.
static void convolve(const RecurrentHalf& half, const KeyHead& own, const float* made, size_t stride, int rows,
                     const float* before, float* after, float* lines, float* mixed) {
    const int past = half.width - 1;
    own.runs([&](int channel, int place, int count) {
        for (int line = 0; line < past + rows; line++) {
            float* to = lines + size_t(line) * own.size + place;
            const float* recent = before ? before + own.matrices + size_t(line) * own.channels + channel : nullptr;
            const float* from = line < past ? recent : made + (line - past) * stride + channel;
            from ? memcpy(to, from, count * sizeof *to) : memset(to, 0, count * sizeof *to);
        }
        for (int line = 0; line < past; line++)
            memcpy(after + own.matrices + size_t(line) * own.channels + channel,
                   lines + size_t(rows + line) * own.size + place, count * sizeof *lines);
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < count; i += LANES) {
                Floats total{};
                for (int tap = 0; tap < half.width; tap++)
                    total = multiply_add(load(lines + size_t(row + tap) * own.size + place + i),
                                         load(half.channels + size_t(tap) * own.channels + channel + i), total);
                store(mixed + size_t(row) * own.size + place + i, silu(total));
            }
    });
}

// Brings a query or a key [size] to this length.
static void set_length(float* x, int size, float length) {
    Floats squares{};
    for (int i = 0; i < size; i += LANES) squares = multiply_add(load(x + i), load(x + i), squares);
    const Floats scale = splat(length / sqrtf(sum(squares) + UNIT_EPSILON));
    for (int i = 0; i < size; i += LANES) store(x + i, load(x + i) * scale);
}

// The decay of a head's matrix at a row, and the strength of the change. In double, whose rounding to float is the same
// with any library.
struct Change {
    float decay, strength;
    Change(double rate, double time, double strength)
        : decay(float(std::exp(rate * (time > 30 ? time : std::log1p(std::exp(time)))))),
          strength(float(1 / (1 + std::exp(-strength)))) {}
};

// Takes rows into 16 columns of a head's matrix, column [key_dim][16], and reads them: rows' queries, keys and values
// lie `stride` apart, and so do the results, by `apart`.
static void take_in(float* column, int key_dim, int rows, const float* queries, const float* values, size_t stride,
                    const Change* changes, int changes_apart, float* result, size_t apart) {
    for (int row = 0; row < rows; row++) {
        const float *q = queries + row * stride, *k = q + key_dim;
        const Change& change = changes[row * changes_apart];
        const Floats decay = splat(change.decay);
        Floats known[4] = {}, read[4] = {};
        for (int i = 0; i < key_dim; i += 4)
            for (int n = 0; n < 4; n++)
                known[n] = multiply_add(load(column + (i + n) * LANES), splat(k[i + n]), known[n]);
        const Floats answer = ((known[0] + known[1]) + (known[2] + known[3])) * decay;
        const Floats wrong = (load(values + row * stride) - answer) * splat(change.strength);
        for (int i = 0; i < key_dim; i += 4)
            for (int n = 0; n < 4; n++) {
                float* at = column + (i + n) * LANES;
                const Floats now = multiply_add(splat(k[i + n]), wrong, load(at) * decay);
                store(at, now);
                read[n] = multiply_add(now, splat(q[i + n]), read[n]);
            }
        store(result + row * apart, (read[0] + read[1]) + (read[2] + read[3]));
    }
}

// Takes at most RUN_ROWS rows of one key head in, from the state `before` (null: zeros) to `after`, which may be it.
// made [rows][stride] is what the product in makes; result [rows][value_heads][value_dim].
static void take_run(Context::Own& scratch, const RecurrentHalf& half, const KeyHead& own, const float* made,
                     size_t stride, int rows, const float* before, float* after, float* result) {
    const int dim = half.value_dim, all = half.value_heads * dim;
    float* lines = scratch.panels.take<float>(size_t(half.width - 1 + rows) * own.size);
    float* mixed = scratch.sums.take<float>(size_t(rows) * own.size);
    float* column = scratch.query.take<float>(size_t(own.key_dim) * LANES);
    convolve(half, own, made, stride, rows, before, after, lines, mixed);
    std::vector<Change> changes;
    for (int row = 0; row < rows; row++) {
        float* q = mixed + size_t(row) * own.size;
        set_length(q, own.key_dim, 1.0f / sqrtf(float(own.key_dim)));
        set_length(q + own.key_dim, own.key_dim, 1.0f);
        const float *strengths = made + row * stride + own.channels + all, *times = strengths + half.value_heads;
        for (int n = own.head * own.shared; n < (own.head + 1) * own.shared; n++)
            changes.emplace_back(half.rate[n], times[n] + half.bias[n], strengths[n]);
    }
    for (int part = 0; part < own.shared; part++)
        for (int at = 0; at < dim; at += LANES) {
            const int head = own.head * own.shared + part;
            const size_t first = size_t(head) * own.key_dim * dim + at;
            for (int i = 0; i < own.key_dim; i++)
                store(column + i * LANES, before ? load(before + first + size_t(i) * dim) : Floats{});
            take_in(column, own.key_dim, rows, mixed, mixed + 2 * own.key_dim + part * dim + at, own.size,
                    changes.data() + part, own.shared, result + head * dim + at, all);
            for (int i = 0; i < own.key_dim; i++) store(after + first + size_t(i) * dim, load(column + i * LANES));
        }
}

// Takes a span's rows of one key head in. A block's first position begins with the state of the block before.
static void take_span(Context::Own& scratch, const RecurrentHalf& half, const Tile& tile, const Span& span, int head,
                      const float* made, size_t stride, float* result) {
    const KeyHead own(half, head);
    for (int at = 0; at < span.count;) {
        const int place = (span.start + at) / tile.state_tokens, inside = (span.start + at) % tile.state_tokens;
        const int rows = std::min({span.count - at, tile.state_tokens - inside, RUN_ROWS});
        float* after = state_of(half, tile, own, span.state_blocks[place]);
        const float* before = inside  ? after
                              : place ? state_of(half, tile, own, span.state_blocks[place - 1])
                                      : nullptr;
        const size_t row = span.row + at;
        take_run(scratch, half, own, made + row * stride, stride, rows, before, after,
                 result + row * half.value_heads * half.value_dim);
        at += rows;
    }
}

template <class T>
static void recurrent_half(Context& context, const RecurrentHalf& half, const Tile& tile, float* hidden) {
    typedef typename T::Active Active;
    const int rows = tile.rows, dim = half.value_dim, all = half.value_heads * dim;
    const size_t stride = padded(half.in.outputs, GROUP), cells = size_t(half.out.words) * T::PER_WORD;
    const uint32_t* x = take_rows<T>(context, hidden, rows, half.hidden, half.before, half.epsilon, half.in.words);
    float* made = context.wide.take<float>(rows * stride);
    multiply<T>(context, half.in, x, rows, [&](int row, int output, float* sums) {
        add_bias(half.in, output, sums);
        memcpy(made + row * stride + output, sums, GROUP * sizeof(float));
    });
    float* read = context.queries.take<float>(size_t(rows) * all);
    context.threads.share(tile.span_count * half.key_heads, [&](int first, int end, int thread) {
        for (int i = first; i < end; i++)
            take_span(context.own[thread], half, tile, tile.spans[i / half.key_heads], i % half.key_heads, made,
                      stride, read);
    });
    const Share share(context, all, half.out.inputs);
    Active* mixed = share.take<Active>(context.attended, (rows + ROWS_BEHIND) * cells);
    const size_t gates = KeyHead(half, 0).channels;
    context.threads.share(rows, [&](int first, int end, int) {
        for (size_t row = first; row < size_t(end); row++)
            for (int head = 0; head < half.value_heads; head++) {
                const float *from = read + row * all + head * dim, *gate = made + row * stride + gates + head * dim;
                Active* to = mixed + row * cells + share.first + head * dim;
                const Floats scale = splat(inverse_rms(from, dim, half.epsilon));
                for (int i = 0; i < dim; i += LANES)
                    T::store_active(to + i, load(from + i) * scale * load(half.norm + i) * silu(load(gate + i)));
            }
    });
    if (share.is_last) clear_padding(mixed, rows, half.out.inputs, cells);
    share.complete(rows, half.out.inputs);
    add_product<T>(context, half.out, reinterpret_cast<const uint32_t*>(mixed), rows, half.hidden, half.after,
                   half.epsilon, hidden, tile.adapters);
}
