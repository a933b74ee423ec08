// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (Hu et al., 2021) of some of a product's rows: y += expand (shrink x). A row's sum is added in one
// order, whatever adapters the other rows have.
#pragma once
#include "products.h"

// Rows of one adapter that are multiplied together: more are shared out over threads.
enum { ADAPTED_ROWS = 32 };

// What finishes the sums of a product: its bias, and the adapters of its rows.
template <class T>
class Finished {
  public:
    // `chosen` [rows] has each row's adapter, or less than 0; null: no row has one.
    Finished(Context& context, const Matrix& matrix, const uint32_t* x, int rows, const int32_t* chosen)
        : matrix(matrix), chosen(chosen && matrix.adapters ? chosen : nullptr) {
        if (!this->chosen) return;
        std::vector<Part> parts;
        for (int row = 0, end; row < rows; row = end) {
            const Adapter* adapter = adapter_of(row);
            for (end = row + 1; end < rows && end < row + ADAPTED_ROWS && chosen[end] == chosen[row];) end++;
            if (!adapter) continue;
            parts.push_back({&adapter->shrink, row, end - row});
            stride = std::max(stride, size_t(padded(adapter->shrink.outputs, LANES)));
        }
        if (parts.empty()) {
            this->chosen = nullptr;
            return;
        }
        shrunk.resize(rows * stride);
        multiply<T>(context, parts.data(), int(parts.size()), x, rows, [&](int part, int row, int output, float* sums) {
            for (int i = 0; i < GROUP && output + i < parts[part].matrix->outputs; i += LANES)
                T::store_active(shrunk.data() + row * stride + output + i, load(sums + i));
        });
    }

    void operator()(int row, int output, float* sums) const {
        add_bias(matrix, output, sums);
        const Adapter* adapter = chosen ? adapter_of(row) : nullptr;
        if (!adapter) return;
        // Both panels at once: the sum of one waits for itself at each step. A panel behind the last is padding.
        const int rank = adapter->rank, words = rank / T::PER_WORD;
        const int own = matrix.first_panel + output / LANES, *parts = matrix.adapters->parts + own;
        const auto* weights = static_cast<const uint32_t*>(adapter->expand) + size_t(own) * words * LANES;
        const typename T::Active* from = shrunk.data() + row * stride;
        const typename T::Active *x = from + parts[0] * rank, *y = from + parts[1] * rank;
        // The first row of an adapter's has the next group's panels read ahead, which lie behind these.
        if (!row || chosen[row - 1] != chosen[row])
            for (int word = 2 * words; word < 4 * words; word++) __builtin_prefetch(weights + word * LANES, 0, 3);
        Floats first{}, second{};
        for (int word = 0; word < words; word++, weights += LANES) {
            const Words here = load_words(weights), there = load_words(weights + size_t(words) * LANES);
            for (int step = 0; step < T::STEPS; step++) {
                const int entry = word * T::STEPS + step;
                first = T::dot(first, T::part(here, step), splat(entry_of(x, entry)));
                second = T::dot(second, T::part(there, step), splat(entry_of(y, entry)));
            }
        }
        store(sums, load(sums) + first);
        store(sums + LANES, load(sums + LANES) + second);
    }

  private:
    static uint32_t entry_of(const typename T::Active* x, int entry) {
        uint32_t found;
        memcpy(&found, reinterpret_cast<const uint32_t*>(x) + entry, sizeof found);
        return found;
    }
    const Adapter* adapter_of(int row) const {
        if (chosen[row] < 0 || chosen[row] >= matrix.adapters->count) return nullptr;
        const Adapter* one = matrix.adapters->slots + chosen[row];
        return one->rank ? one : nullptr;
    }
    const Matrix& matrix;
    const int32_t* chosen;
    size_t stride = 0;
    std::vector<typename T::Active> shrunk;
};
