// How a tensor is cut into tiles, and how a tile's rows are shared among blocks. The host tries every width that a tile
// may have and takes the one with the lowest estimated cost. It also does the divisions, so that no thread has to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "08_batchnorm/final/shape.cuh"
#include "08_batchnorm/final/vector.cuh"

namespace worklog::batchnorm {

// [snippet: tiling]
// A tensor is `lines` of `line` elements in which the channels repeat: a line is a row [channels], or a sample
// [channels, pixels] where the channels come first. Where a row is no whole number of vectors, several rows are a line:
// four rows of 3 floats are three vectors, whatever the number of rows left over at the end.
//
// A tile is `tile_channels` channels, and the `tile_vectors` vectors that hold them in each line. Its lines are split
// among blocks: a block is of tile blockIdx.x and of split blockIdx.y. The splits take the lines in turn,
// `lines_at_once` at a time, so that all blocks walk through the tensor together, as those of a copy do.
struct Tiling {
  int64_t lines;
  int64_t line;       // elements
  int64_t rows_over;  // rows of `channels` elements after the last whole line
  int channels;       // of the tensor
  int run;            // neighbouring elements of one channel: pixels, or 1
  int tile_channels;  // the last tile may have fewer; never more than a block has threads
  int tile_vectors;
  int tiles, splits;

  // How the threads of a block stand on a tile: side by side on whole lines, or on a part of one.
  int columns;        // threads on a line
  int lines_at_once;  // lines that have threads; threads that are left over have nothing to do
  int step_vectors;   // where a line is longer than the block: from one of a thread's vectors to its next
  int each, more;     // vectors of every thread; the first `more` lines (or threads, on a longer line) have one more
  // Where a line is longer than the block: the first `longer` splits have one line more than the others, and their
  // threads have these numbers of vectors.
  int longer, each_of_longer, more_of_longer;
  int kept;           // of a thread: 1 partial, where its vectors are of one channel, 2 where of two, or each element's
  int parts;          // partials of one channel in a block
  int parts_of_line;  // of these, on one line
  int team_bits;      // a channel has 2^team_bits lanes
  Eviction eviction;  // of what is read, in the L2 cache,
  Eviction eviction_at_last;  // and what is read for the last time
};
// [/snippet]

// [snippet: plan]
// How `threads` threads stand on the tiles of `t`.
inline void place_threads(Tiling& t, int size, int threads) {
  const bool is_wide = t.tile_vectors > threads;
  t.columns = is_wide ? threads : t.tile_vectors;
  t.step_vectors = is_wide ? threads : 0;
  // As many lines as fit, or a few less, where every split is to have its turn as often as the others.
  const int64_t fit = is_wide ? 1 : threads / t.tile_vectors;
  const int64_t lines_of_split = (t.lines + t.splits - 1) / t.splits;
  const int64_t turns = std::max<int64_t>(1, (lines_of_split + fit - 1) / fit);
  t.lines_at_once = static_cast<int>(std::max<int64_t>(1, (lines_of_split + turns - 1) / turns));
  const auto share_out = [](int64_t things, int64_t among, int& each, int& more) {
    each = static_cast<int>(things / among);
    more = static_cast<int>(things % among);
  };
  if (is_wide) {
    const int64_t lines = t.lines / t.splits;
    t.longer = static_cast<int>(t.lines % t.splits);
    share_out(lines * t.tile_vectors, threads, t.each, t.more);
    share_out((lines + 1) * t.tile_vectors, threads, t.each_of_longer, t.more_of_longer);
  } else {
    t.longer = 0;
    share_out(t.lines, int64_t{t.splits} * t.lines_at_once, t.each, t.more);
  }
  t.kept = t.run % size == 0 ? 1 : t.run > size ? 2 : size;
  t.parts_of_line = t.kept == size ? t.columns * size / t.tile_channels
                    : t.kept == 1  ? t.columns / t.tile_channels
                                   : (t.run - 1 + size - std::gcd(t.run, size)) / size + 1;
  t.parts = t.parts_of_line * static_cast<int>(std::min<int64_t>(t.lines_at_once, t.lines));
  t.team_bits = 0;
  while (t.team_bits < 5 && (t.tile_channels << (t.team_bits + 1)) <= threads) ++t.team_bits;
}

// Cuts a tensor whose vectors are `size` elements into tiles for `blocks` blocks of `threads` threads. Returns no tiles
// where a vector would hold what no tile can: then the elements are to be moved one by one.
// `room` bounds the splits: for so many channels can blocks leave what they have found. `in_cache`: the L2 cache holds
// all that is read and written.
inline Tiling tiling_of(const Shape& s, int size, int64_t blocks, int threads, int64_t room, bool in_cache) {
  const int64_t rows = s.samples * s.pixels;
  Tiling t = {};
  t.channels = static_cast<int>(s.channels);
  t.run = run_of(s);
  const bool runs = t.run > 1;

  // The least that a tile can be: whole channels in whole vectors.
  int64_t unit_channels;
  if (runs) {
    unit_channels = size / std::gcd<int64_t>(s.pixels, size);
    if (s.channels % unit_channels != 0) return t;
    t.lines = s.samples;
    t.line = s.channels * s.pixels;
  } else {
    const int64_t rows_of_line = size / std::gcd<int64_t>(s.channels, size);
    t.lines = rows / rows_of_line;
    t.line = s.channels * rows_of_line;
    t.rows_over = rows % rows_of_line;
    unit_channels = rows_of_line > 1 ? s.channels : size;
  }
  const int64_t units = s.channels / unit_channels;
  const int64_t unit_vectors = t.line / units / size;
  const int64_t most_vectors = runs ? threads : size > 1 ? 64 : 256;
  const bool fits = runs ? unit_channels == 1 || unit_vectors <= threads : t.line == s.channels || unit_vectors <= 128;
  if (!fits || unit_channels > threads) return t;

  // In vectors, as measured: what a round of tiles costs beside its work, what it costs that blocks wait for each
  // other, and that they read what they tell each other. Pieces of a few bytes cost memory more than their bytes, but
  // a tile that no other block shares is worth it where it is small. A piece that ends within a sector, the 32 bytes
  // that memory moves as one, has that sector read by two blocks, and written by each in part, which costs much more.
  constexpr int64_t overhead = 3000;
  constexpr int64_t waiting = 2500;
  constexpr int64_t cut_sector = 10;
  // Blocks that share a tile have a wide one, where memory is what they wait for. In the cache a narrow piece costs
  // little, and with narrow tiles fewer blocks exchange the results of fewer channels. The narrowest piece is half a
  // sector, so two blocks fetch each sector. Few blocks may do that; with most multiprocessors at work, the cache would
  // have to hand out everything twice.
  const int64_t least_width = size == 1 ? 128 : in_cache ? 4 : 16;
  const auto handicap = [in_cache, blocks](int64_t width, int64_t tiles) {  // in 32nds
    if (width == 1) return in_cache && 2 * tiles <= blocks ? 96 : 160;
    return width >= 16 ? 32 : width >= 8 ? 33 : width >= 4 ? 48 : 64;
  };
  const int64_t mean = t.lines * t.line / size / blocks;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t of_tile = 1; of_tile <= units; ++of_tile) {
    const int64_t width = of_tile * unit_vectors;
    if (of_tile > 1 && (width > most_vectors || of_tile * unit_channels > threads)) break;
    const bool is_narrow = of_tile < units && width < least_width && (of_tile + 1) * unit_vectors <= most_vectors;
    const int64_t tiles = (units + of_tile - 1) / of_tile;
    const int64_t fit = room / (tiles * of_tile * unit_channels);
    const int64_t most_splits = std::max<int64_t>(1, std::min({blocks / tiles, t.lines, fit}));
    for (const int64_t wanted : {int64_t{1}, is_narrow ? 1 : most_splits}) {
      const int64_t lines = std::max<int64_t>(1, (t.lines + wanted - 1) / wanted);
      const int64_t splits = std::max<int64_t>(1, (t.lines + lines - 1) / lines);
      const int64_t rounds = (tiles * splits + blocks - 1) / blocks;
      const int64_t together = splits > 1 ? waiting + splits * of_tile * unit_channels / 4 : 0;
      const int64_t cut = size > 1 && !in_cache && of_tile < units && width % 2 != 0 ? cut_sector : 0;
      const int64_t of_block = rounds * lines * (width * handicap(width, tiles) + cut * 32) / 32;
      // Memory is shared: where one block has more to do than others, only half of that is lost.
      const int64_t work = (of_block + std::min(of_block, mean)) / 2 + rounds * overhead + together;
      if (work >= least) continue;
      least = work;
      t.tile_channels = static_cast<int>(of_tile * unit_channels);
      t.tile_vectors = static_cast<int>(width);
      t.tiles = static_cast<int>(tiles);
      t.splits = static_cast<int>(splits);
    }
  }
  place_threads(t, size, threads);
  return t;
}
// [/snippet]

}  // namespace worklog::batchnorm
