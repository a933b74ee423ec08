// SPDX-License-Identifier: Apache-2.0
// The division of a tile's attention among threads.
#pragma once
#include <algorithm>
#include <new>

#include "attention.h"

// Query heads of a group that stay together for the sake of the keys that they share.
enum { LEAST_GROUP = 8 };

// Pieces of all spans. Those of one position keep all heads together, unless some threads would have nothing to do or
// there are more query heads than a tile of queries holds.
static std::vector<Piece> cut(const Tile& tile, const HeadSizes& sizes, int threads) {
    const int group = sizes.group(), positions = group < QUERIES ? QUERIES / group : 1;
    std::vector<Piece> pieces;
    for (int i = 0; i < tile.span_count; i++)
        for (int offset = 0; offset < tile.spans[i].count; offset += positions) {
            const int count = std::min(positions, tile.spans[i].count - offset);
            pieces.push_back({tile.spans + i, offset, count, 0, sizes.kv_heads, 0, group});
        }
    const int most = int(pieces.size());
    if (most < threads && sizes.kv_heads > 1) {
        std::vector<Piece> parts;
        for (Piece piece : pieces)
            for (piece.heads = 1, piece.head = 0; piece.head < sizes.kv_heads; piece.head++) parts.push_back(piece);
        pieces.swap(parts);
    }
    const int idle = (threads + int(pieces.size()) - 1) / std::max(1, int(pieces.size()));
    const int times = std::max((group + QUERIES - 1) / QUERIES, std::min(idle, group / LEAST_GROUP));
    if (times <= 1) return pieces;
    std::vector<Piece> parts;
    for (Piece piece : pieces)
        for (int part = 0; part < times; part++) {
            piece.first = group * part / times, piece.group = group * (part + 1) / times - piece.first;
            parts.push_back(piece);
        }
    return parts;
}

template <class K>
static void set_up(QueryTile<K>& one, const HeadSizes& sizes, const Tile& tile, const Piece& piece) {
    new (&one) QueryTile<K>(K(tile, sizes, piece.head), sizes, piece);
}

// queries [row][head][dim]; result as in attend_queries.
template <class K>
static void attend_piece(Context::Own& own, QueryTile<K>& one, const QueryTile<K>* then, const Piece& piece,
                         const HeadSizes& sizes, const typename K::Model::Active* queries,
                         typename K::Model::Active* result, size_t stride, size_t head_stride) {
    typedef typename K::Model::Active Active;
    const size_t row = piece.span->row + piece.offset, first = piece.head * one.whole + piece.first;
    const size_t rows = size_t(piece.heads) * one.rows(), size = sizes.dim * sizeof(Active), all = one.query_words * 4;
    one.scratch = own.panels.template take<uint32_t>(one.scratch_words());
    one.sums = own.sums.template take<float>(rows * one.sum_words);
    one.known = own.known.template take<typename QueryTile<K>::Head>(piece.heads);
    char* query = own.query.template take<char>(rows * all);
    for (int head = 0; head < piece.heads; head++)
        for (int q = 0; q < one.queries(); q++) {
            char* to = query + (size_t(head) * one.rows() + q) * all;
            const size_t place = (row + q / piece.group) * sizes.heads + first + head * one.whole + q % piece.group;
            memcpy(to, queries + place * sizes.dim, size);
            memset(to + size, 0, all - size);
        }
    one.attend(reinterpret_cast<const uint32_t*>(query), then);
    one.finish(result + row * stride + first * head_stride, stride, head_stride);
}

// Attends queries [row][head][dim] of all rows, whose keys and values are stored. A head's result, [value_dim], is at
// row * stride + head * head_stride.
template <class K>
static void attend_queries(Context& context, const HeadSizes& sizes, const Tile& tile,
                           const typename K::Model::Active* queries, typename K::Model::Active* result, size_t stride,
                           size_t head_stride) {
    const std::vector<Piece> pieces = cut(tile, sizes, context.threads.size());
    [[maybe_unused]] int most = 0;
    for (const Piece& piece : pieces) most = std::max(most, piece.count * piece.group);
    context.threads.share(int(pieces.size()), [&](int first, int end, int thread) {
#if defined(PONTIL_TILES)
        // Few rows take half the time.
        TileScope scope(true, most <= TILE / 2 ? TILE / 2 : TILE);
        (void)scope;
#endif
        Context::Own& own = context.own[thread];
        QueryTile<K>* tiles = own.tiles.template take<QueryTile<K>>(2);
        set_up(tiles[first % 2], sizes, tile, pieces[first]);
        for (int i = first; i < end; i++) {
            QueryTile<K>* then = i + 1 < end ? tiles + (i + 1) % 2 : nullptr;
            if (then) set_up(*then, sizes, tile, pieces[i + 1]);
            attend_piece<K>(own, tiles[i % 2], then, pieces[i], sizes, queries, result, stride, head_stride);
        }
    });
}
