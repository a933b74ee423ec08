// SPDX-License-Identifier: Apache-2.0
// Recurrent layers behind a short convolution: the gated delta rule (Yang et al., 2024), or the state space of Mamba 2
// (Dao and Gu, 2024). Positions are taken in one after the other, and a column of a head's matrix knows nothing of the
// others: so a row's bits are the same for any cutting, company, division and number of threads. Rows that verify
// guesses change no state: what the product in made of them is kept, and those that are right are taken in afterwards.
#pragma once
#include <cmath>

#include "layer.h"

constexpr float UNIT_EPSILON = 1e-6f;

// The places of a row's parts in what the product in makes, and of those of a layer's state: the matrices
// [value_heads][key_dim][value_dim], then the channels of the last positions.
struct RecurrentPlaces {
    explicit RecurrentPlaces(const RecurrentHalf& half)
        : is_delta(!half.direct), keys(half.key_heads * half.key_dim), all(half.value_heads * half.value_dim),
          channels(2 * keys + all), strengths(channels + all), times(strengths + (is_delta ? half.value_heads : 0)),
          matrices(size_t(half.value_heads) * half.key_dim * half.value_dim),
          numbers(matrices + size_t(half.width - 1) * channels) {}
    const bool is_delta;
    const int keys, all, channels, strengths, times;
    const size_t matrices, numbers;
};

// Calls f(row, rows, before, after) for the rows of a span in each block, with the layer's state before them (null:
// zeros) and where that after them is kept, which may be the same. Rows that verify guesses are one run, whose state is
// kept nowhere (null).
template <class F>
static void in_blocks(const RecurrentHalf& half, const RecurrentPlaces& places, const Tile& tile, const Span& span,
                      F&& f) {
    const auto state_of = [&](int block) {
        return tile.states + size_t(block) * tile.state_stride + half.layer * places.numbers;
    };
    const bool verifies = span.kept >= 0;
    for (int at = 0; at < span.count;) {
        const int place = (span.start + at) / tile.state_tokens, inside = (span.start + at) % tile.state_tokens;
        const int rows = verifies ? span.count : std::min(span.count - at, tile.state_tokens - inside);
        float* after = state_of(span.state_blocks[place]);
        const float* before = inside ? after : place ? state_of(span.state_blocks[place - 1]) : nullptr;
        f(size_t(span.row + at), rows, before, verifies ? nullptr : after);
        at += rows;
    }
}

// Convolves `count` channels of a span's rows of made [rows][stride] into mixed [rows][channels], behind those of its
// state, and keeps the last ones there.
static void convolve(const RecurrentHalf& half, const RecurrentPlaces& places, const Tile& tile, const Span& span,
                     int channel, int count, const float* made, size_t stride, float* mixed) {
    const int past = half.width - 1;
    in_blocks(half, places, tile, span, [&](size_t first, int rows, const float* before, float* after) {
        // The channels at a position, counted from the first one that is kept; null: zeros.
        const auto line = [&](int place) -> const float* {
            if (place >= past) return made + (first + place - past) * stride + channel;
            return before ? before + places.matrices + size_t(place) * places.channels + channel : nullptr;
        };
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < count; i += LANES) {
                Floats total{};
                for (int tap = 0; tap < half.width; tap++)
                    if (const float* from = line(row + tap))
                        total = multiply_add(
                            load(from + i), load(half.channels + size_t(tap) * places.channels + channel + i), total);
                if (half.channel_bias) total = total + load(half.channel_bias + channel + i);
                store(mixed + (first + row) * places.channels + channel + i, silu(total));
            }
        for (int place = 0; after && place < past; place++) {
            float* to = after + places.matrices + size_t(place) * places.channels + channel;
            const float* from = line(rows + place);
            from ? memcpy(to, from, count * sizeof *to) : memset(to, 0, count * sizeof *to);
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

// Convolves the channels of one query, key or value head of a span, which follow each other in this order, and brings
// queries and keys of the delta rule to their lengths.
static void mix_head(const RecurrentHalf& half, const RecurrentPlaces& places, const Tile& tile, const Span& span,
                     int head, const float* made, size_t stride, float* mixed) {
    const bool is_key = head < 2 * half.key_heads;
    const int channel = is_key ? head * half.key_dim : 2 * places.keys + (head - 2 * half.key_heads) * half.value_dim;
    convolve(half, places, tile, span, channel, is_key ? half.key_dim : half.value_dim, made, stride, mixed);
    if (!is_key || !places.is_delta) return;
    const float length = head < half.key_heads ? 1.0f / sqrtf(float(half.key_dim)) : 1.0f;
    for (int row = 0; row < span.count; row++)
        set_length(mixed + size_t(span.row + row) * places.channels + channel, half.key_dim, length);
}

// The decay of a head's matrix at a row, and the strength of the change. In double, whose rounding to float is the same
// with any library.
struct Change {
    float decay, strength;
    // `made` is a row of what the product in makes.
    Change(const RecurrentHalf& half, const RecurrentPlaces& places, const float* made, int head) {
        const double time = made[places.times + head] + half.bias[head];
        const double step = time > 30 ? time : std::log1p(std::exp(time));
        decay = float(std::exp(half.rate[head] * step));
        strength = float(places.is_delta ? 1 / (1 + std::exp(-double(made[places.strengths + head]))) : step);
    }
};

// Takes rows into 16 columns of a head's matrix, column [key_dim][16], and reads them: rows' queries, keys and values
// lie `stride` apart, and results `apart`. By the delta rule the values move what the matrix answers to the keys;
// else they are added, and reach the results by a `direct` way too.
template <bool DELTA>
static void take_in(float* column, int key_dim, int rows, const float* queries, const float* keys, const float* values,
                    size_t stride, const Change* changes, float direct, float* result, size_t apart) {
    for (int row = 0; row < rows; row++) {
        const float *q = queries + row * stride, *k = keys + row * stride;
        const Floats decay = splat(changes[row].decay), value = load(values + row * stride);
        Floats known[4] = {}, read[4] = {}, added = value;
        if (DELTA) {
            for (int i = 0; i < key_dim; i += 4)
                for (int n = 0; n < 4; n++)
                    known[n] = multiply_add(load(column + (i + n) * LANES), splat(k[i + n]), known[n]);
            added = value - ((known[0] + known[1]) + (known[2] + known[3])) * decay;
        }
        added = added * splat(changes[row].strength);
        for (int i = 0; i < key_dim; i += 4)
            for (int n = 0; n < 4; n++) {
                float* at = column + (i + n) * LANES;
                const Floats now = multiply_add(splat(k[i + n]), added, load(at) * decay);
                store(at, now);
                read[n] = multiply_add(now, splat(q[i + n]), read[n]);
            }
        const Floats all = (read[0] + read[1]) + (read[2] + read[3]);
        store(result + row * apart, DELTA ? all : multiply_add(value, splat(direct), all));
    }
}

// Copies 16 columns of `rows` rows, which lie so many numbers apart. No numbers are read by reference here: for the
// compiler a vector that is stored may change any.
static void copy_columns(const float* from, size_t from_apart, float* to, size_t to_apart, int rows) {
    for (int row = 0; row < rows; row++) store(to + row * to_apart, load(from + row * from_apart));
}

// Takes a span's rows into the matrix of one value head, and reads it: result [rows][value_heads][value_dim].
static void take_head(Context::Own& scratch, const RecurrentHalf& half, const RecurrentPlaces& places,
                      const Tile& tile, const Span& span, int head, const float* made, size_t stride,
                      const float* mixed, float* result) {
    const int dim = half.value_dim, key_dim = half.key_dim;
    float* column = scratch.query.take<float>(size_t(key_dim) * LANES);
    in_blocks(half, places, tile, span, [&](size_t first, int rows, const float* before, float* after) {
        std::vector<Change> changes;
        changes.reserve(rows);
        for (int row = 0; row < rows; row++) changes.emplace_back(half, places, made + (first + row) * stride, head);
        const float* own = mixed + first * places.channels;
        const float* queries = own + head / (half.value_heads / half.key_heads) * key_dim;
        for (int at = 0; at < dim; at += LANES) {
            const size_t place = size_t(head) * key_dim * dim + at;
            if (before)
                copy_columns(before + place, dim, column, LANES, key_dim);
            else
                memset(column, 0, size_t(key_dim) * LANES * sizeof *column);
            const float* values = own + 2 * places.keys + head * dim + at;
            float* to = result + first * places.all + head * dim + at;
            if (places.is_delta)
                take_in<true>(column, key_dim, rows, queries, queries + places.keys, values, places.channels,
                              changes.data(), 0, to, places.all);
            else
                take_in<false>(column, key_dim, rows, queries, queries + places.keys, values, places.channels,
                               changes.data(), half.direct[head], to, places.all);
            if (after) copy_columns(column, LANES, after + place, dim, key_dim);
        }
    });
}

// The results of a row [value_heads][value_dim] with their gates and norms. By the delta rule each head is normed and
// then gated; else heads are gated, and those that share a key are normed together.
template <class T>
static void gate_row(const RecurrentHalf& half, const RecurrentPlaces& places, const float* gates, float* from,
                     typename T::Active* to) {
    const int size = places.is_delta ? half.value_dim : places.all / half.key_heads;
    for (int first = 0; first < places.all; first += size) {
        if (!places.is_delta)
            for (int i = first; i < first + size; i += LANES) store(from + i, load(from + i) * silu(load(gates + i)));
        const Floats scale = splat(inverse_rms(from + first, size, half.own_epsilon));
        for (int i = 0; i < size; i += LANES) {
            const Floats normed = load(from + first + i) * scale * load(half.norm + (places.is_delta ? i : first + i));
            T::store_active(to + first + i, places.is_delta ? normed * silu(load(gates + first + i)) : normed);
        }
    }
}

// Takes the rows of all spans into their states, as far as these are written, and reads them: made [rows][stride] is
// what the product in makes; the result [rows][value_heads][value_dim] is in scratch memory.
static float* take_spans(Context& context, const RecurrentHalf& half, const RecurrentPlaces& places, const Tile& tile,
                         const float* made, size_t stride) {
    const int heads = 2 * half.key_heads + half.value_heads;
    float* mixed = context.heads.take<float>(size_t(tile.rows) * places.channels);
    context.threads.share(tile.span_count * heads, [&](int first, int end, int) {
        for (int i = first; i < end; i++)
            mix_head(half, places, tile, tile.spans[i / heads], i % heads, made, stride, mixed);
    });
    float* read = context.queries.take<float>(size_t(tile.rows) * places.all);
    context.threads.share(tile.span_count * half.value_heads, [&](int first, int end, int thread) {
        for (int i = first; i < end; i++)
            take_head(context.own[thread], half, places, tile, tile.spans[i / half.value_heads], i % half.value_heads,
                      made, stride, mixed, read);
    });
    return read;
}

// Keeps what the product in made of the rows that verify guesses.
static void keep_rows(const RecurrentHalf& half, const Tile& tile, const float* made, size_t stride) {
    for (const Span* span = tile.spans; span < tile.spans + tile.span_count; span++)
        for (int row = 0; span->kept >= 0 && row < span->count; row++)
            memcpy(tile.kept + size_t(span->kept + row) * tile.kept_stride + size_t(half.layer) * half.in.outputs,
                   made + size_t(span->row + row) * stride, half.in.outputs * sizeof(float));
}

// Takes kept rows that turned out to be right into the states.
static void take_kept(Context& context, const RecurrentHalf& half, const Tile& tile) {
    take_spans(context, half, RecurrentPlaces(half), tile, tile.kept + size_t(half.layer) * half.in.outputs,
               tile.kept_stride);
}

template <class T>
static void recurrent_half(Context& context, const RecurrentHalf& half, const Tile& tile, float* hidden) {
    typedef typename T::Active Active;
    const RecurrentPlaces places(half);
    const int rows = tile.rows;
    const size_t stride = padded(half.in.outputs, GROUP), cells = size_t(half.out.words) * T::PER_WORD;
    const uint32_t* x = take_rows<T>(context, hidden, rows, half.hidden, half.before, half.epsilon, half.in.words);
    float* made = context.wide.take<float>(rows * stride);
    const Finished<T> finished(context, half.in, x, rows, tile.adapters);
    multiply<T>(context, half.in, x, rows, [&](int row, int output, float* sums) {
        finished(row, output, sums);
        memcpy(made + row * stride + output, sums, GROUP * sizeof(float));
    });
    keep_rows(half, tile, made, stride);
    float* read = take_spans(context, half, places, tile, made, stride);
    const Share share(context, places.all, half.out.inputs);
    Active* gated = share.take<Active>(context.attended, (rows + ROWS_BEHIND) * cells);
    context.threads.share(rows, [&](int first, int end, int) {
        for (size_t row = first; row < size_t(end); row++)
            gate_row<T>(half, places, made + row * stride + places.channels, read + row * places.all,
                        gated + row * cells + share.first);
    });
    if (share.is_last) clear_padding(gated, rows, half.out.inputs, cells);
    share.complete(rows, half.out.inputs);
    add_product<T>(context, half.out, reinterpret_cast<const uint32_t*>(gated), rows, half.hidden, half.after,
                   half.epsilon, hidden, tile.adapters);
}
