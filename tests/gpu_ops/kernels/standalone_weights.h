// SPDX-License-Identifier: Apache-2.0
// Random weights for standalone.cpp, packed as the kernels want them.
#pragma once
#include <cmath>
#include <vector>

#include "linear.h"

typedef std::vector<double> Numbers;
typedef std::vector<float> Reals;

// The same numbers on every machine (Knuth's linear congruence).
static uint32_t random_bits() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 32);
}
// Uniform, of variance 1.
static float random_number() { return float(std::sqrt(12.0) * (random_bits() / 4294967296.0 - 0.5)); }
static Reals random_numbers(size_t count) {
    Reals made(count);
    for (float& one : made) one = random_number();
    return made;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
// Rounds to the nearest bfloat16, to the even one of two.
static float rounded(float x) {
    const uint32_t bits = (bits_of(x) + 0x7fff + ((bits_of(x) >> 16) & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Rounds a row to whole numbers of 13 bits and a sign, in units of a power of two, as products with levels do.
static void round_to_integers(Numbers& row) {
    double highest = 0;
    for (double one : row) highest = std::fmax(highest, std::fabs(one));
    const double unit = std::ldexp(1.0, std::ilogb(highest) - 12);
    for (double& one : row) one = std::nearbyint(one / unit) * unit;
}

// x / rms(x) * weights, in place; nothing without weights.
static void norm(double* x, const Reals& weights, double epsilon) {
    double squares = 0;
    for (size_t i = 0; i < weights.size(); i++) squares += x[i] * x[i];
    for (size_t i = 0; i < weights.size(); i++) x[i] *= weights[i] / std::sqrt(squares / weights.size() + epsilon);
}

// A random matrix, packed as kernels.h and quantized.h say, and its values as numbers. Levels have one scale for
// `group` inputs (0: for all of them).
struct Weight {
    Weight(int kind, int outputs, int inputs, int group, bool biased, bool by_table = false)
        : values(size_t(outputs) * inputs) {
        for (int i = 0; by_table && i < 16; i++) table.push_back(int8_t(random_bits() >> 24));
        const int whole = padded(outputs, GROUP), words = padded(inputs / (kind == FLOAT32 ? 1 : 2), 16);
        const int pairs = kind == NIBBLES ? 4 : kind >= BYTES ? 2 : 1, scale_words = group ? group / 2 : words;
        data.resize(size_t(whole) * words / pairs), scales.resize(kind >= NIBBLES ? whole * words / scale_words : 0);
        if (biased) bias = random_numbers(whole);
        for (int output = 0; output < whole; output++) units.push_back(float(output % 7 + 1) / 1024);
        matrix = {data.data(), scales.data(), units.data(), biased ? bias.data() : nullptr,
                  by_table ? table.data() : nullptr, nullptr, kind, outputs, inputs, words,
                  kind >= NIBBLES ? scale_words : 0, 0, 0, 0};
        for (int output = 0; output < outputs; output++) {
            if (kind >= NIBBLES)
                fill_levels(output, pairs);
            else
                fill_numbers(output);
        }
    }
    Weight(const Weight&) = delete;

    void fill_numbers(int output) {
        for (int i = 0; i < matrix.inputs; i++) {
            float x = random_number() / std::sqrt(float(matrix.inputs));
            if (matrix.kind == BFLOAT16) x = rounded(x);
            values[size_t(output) * matrix.inputs + i] = x;
            const bool two = matrix.kind == BFLOAT16;
            uint32_t& word = data[place(output, two ? i / 2 : i, matrix.words)];
            word |= !two || i % 2 ? bits_of(x) : bits_of(x) >> 16;
        }
    }
    void fill_levels(int output, int pairs) {
        const int bits = 16 / pairs, groups = matrix.words / matrix.scale_words, size = 2 * matrix.scale_words;
        int scale = 0, offset = 0;
        for (int i = 0; i < matrix.inputs; i++) {
            if (i % size == 0) {
                scale = int(random_bits() >> 8) % (matrix.kind == NIBBLES && !matrix.table ? 16000 : 2000), offset = scale % 4001 - 2000;
                if (offset % 2) scale = -scale;
                scales[place(output, i / size, groups)] = (scale & 0xffff) | uint32_t(offset) << 16;
            }
            const uint32_t raw = (random_bits() >> 8) & ((1u << bits) - 1);
            const int level = matrix.table ? matrix.table[raw] : matrix.kind == BYTES ? int8_t(raw) : int(raw);
            const double weight = std::floor((level * scale + 64) / 128.0) + offset;
            values[size_t(output) * matrix.inputs + i] = weight * units[output];
            const int inside = i % (2 * pairs), shift = inside / 2 * bits + inside % 2 * 16;
            data[place(output, i / (2 * pairs), matrix.words / pairs)] |= raw << shift;
        }
    }
    static size_t place(int output, int word, int words) {
        return (size_t(output / GROUP) * words + word) * GROUP + output % GROUP;
    }

    Numbers of(const double* x) const {
        Numbers made(matrix.outputs);
        for (int output = 0; output < matrix.outputs; output++) {
            double sum = matrix.bias ? bias[output] : 0;
            for (int i = 0; i < matrix.inputs; i++) sum += values[size_t(output) * matrix.inputs + i] * x[i];
            made[output] = sum;
        }
        return made;
    }

    Numbers values;
    std::vector<uint32_t> data, scales;
    std::vector<int8_t> table;
    Reals units, bias;
    Matrix matrix;
};
