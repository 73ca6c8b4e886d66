// Which tiles a kernel visits where a program's mask is more than a band of diagonals.
//
// The 32 lanes of a warp classify 32 tiles at once, each with interval arithmetic over a whole
// tile, and two ballots make bits of it: which tiles are worth a visit, and which need no mask.
// Every warp of a block finds the same, without a word to the others.
#pragma once

namespace flashgen {

// Walks the tiles that aren't empty, kStep = 1 upwards or -1 downwards:
//
//   const auto classify = [&](int tile) { return classify_tile(...); };  // -> Class
//   TileWalk<Class, -1> walk;
//   for (walk.start(from, to, lane, classify); walk.any(); walk.next(lane, classify)) {
//       ... walk.tile, walk.full() ...
//   }
//
// `Class` is an enum of kEmpty, kPartial and kFull. `from` and `to` are the first and the last tile
// in walking order, both included. After next(), `tile` is the one to prefetch.
template <typename Class, int kStep>
class TileWalk {
    static_assert(kStep == 1 || kStep == -1, "up or down");

  public:
    int tile;  // the one that is being visited

    template <typename Classify>
    __device__ __forceinline__ void start(int from, int to, int lane, Classify classify) {
        tile = from;
        to_ = to;
        if (any()) {
            look(lane, classify);
            seek(visible_, lane, classify);
        }
    }

    __device__ __forceinline__ bool any() const { return kStep > 0 ? tile <= to_ : tile >= to_; }

    // Whether every element of the tile is visible.
    __device__ __forceinline__ bool full() const {
        return full_ >> (tile % 32) & 1;
    }

    template <typename Classify>
    __device__ __forceinline__ void next(int lane, Classify classify) {
        // Shifted twice: 32 at once is no shift.
        const unsigned ahead = kStep > 0 ? ~0u << (tile % 32) << 1 : (1u << (tile % 32)) - 1;
        seek(visible_ & ahead, lane, classify);
    }

    // Goes to the tile beside this one if that is known not to be empty, or else stays.
    __device__ __forceinline__ bool step_to_neighbor() {
        const int bit = tile % 32;
        const bool found = kStep > 0 ? visible_ >> bit >> 1 & 1 : visible_ << 1 >> bit & 1;
        if (found) tile += kStep;
        return found;
    }

  private:
    // Classifies the 32 tiles around `tile`, none before it and none behind the last.
    template <typename Classify>
    __device__ __forceinline__ void look(int lane, Classify classify) {
        const int mine = tile / 32 * 32 + lane;
        const bool ahead = kStep > 0 ? mine >= tile && mine <= to_ : mine <= tile && mine >= to_;
        const Class found = ahead ? classify(mine) : Class::kEmpty;
        visible_ = __ballot_sync(0xffffffff, found != Class::kEmpty);
        full_ = __ballot_sync(0xffffffff, found == Class::kFull);
    }

    // Moves to the first of `candidates` in walking order, or of the tiles behind these 32.
    template <typename Classify>
    __device__ __forceinline__ void seek(unsigned candidates, int lane, Classify classify) {
        while (candidates == 0) {
            tile = kStep > 0 ? tile / 32 * 32 + 32 : tile / 32 * 32 - 1;
            if (!any()) return;
            look(lane, classify);
            candidates = visible_;
        }
        tile = tile / 32 * 32 + (kStep > 0 ? __ffs(candidates) - 1 : 31 - __clz(candidates));
    }

    int to_;
    unsigned visible_, full_;  // bit i: of tile number tile / 32 * 32 + i
};

}  // namespace flashgen
