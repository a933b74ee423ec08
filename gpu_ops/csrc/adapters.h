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
            stride = std::max(stride, size_t(padded(adapter->shrink.outputs, GROUP)));
        }
        if (parts.empty()) {
            this->chosen = nullptr;
            return;
        }
        shrunk.resize(rows * stride);
        multiply<T>(context, parts.data(), int(parts.size()), x, rows, [&](int, int row, int output, float* sums) {
            memcpy(shrunk.data() + row * stride + output, sums, GROUP * sizeof(float));
        });
    }

    void operator()(int row, int output, float* sums) const {
        add_bias(matrix, output, sums);
        const Adapter* adapter = chosen ? adapter_of(row) : nullptr;
        if (!adapter) return;
        const int rank = adapter->rank, behind = (matrix.outputs + LANES - 1) / LANES;
        for (int i = 0, panel = output / LANES; i < GROUP && panel < behind; i += LANES, panel++) {
            const int own = matrix.first_panel + panel;
            const float* x = shrunk.data() + row * stride + matrix.adapters->parts[own] * rank;
            const auto* weights = static_cast<const typename T::Cell*>(adapter->expand) + size_t(own) * rank * LANES;
            Floats total{};
            for (int r = 0; r < rank; r++)
                total = multiply_add(splat(x[r]), T::load_cells(weights + r * LANES), total);
            store(sums + i, load(sums + i) + total);
        }
    }

  private:
    const Adapter* adapter_of(int row) const {
        if (chosen[row] < 0 || chosen[row] >= matrix.adapters->count) return nullptr;
        const Adapter* one = matrix.adapters->slots + chosen[row];
        return one->rank ? one : nullptr;
    }
    const Matrix& matrix;
    const int32_t* chosen;
    size_t stride = 0;
    std::vector<float> shrunk;
};
