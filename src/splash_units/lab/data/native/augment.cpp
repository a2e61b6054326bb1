// Augmentation of a batch in one pass over its images, from bytes to floats in [0, 1].
//
// augment.py has the same in torch operations, which define it. Here an image stays in the first
// cache from its bytes to its result. Flips and shifts give the same bits; warps and colours round
// otherwise. Threads, which are torch's, share out whole images, so their number changes no bit.

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

// Call work(begin, end) for stretches of `count` images, in parallel.
template <typename Work>
void share_out(int64_t count, const Work& work) {
  // Fewer images than this take less time than it takes to wake a thread.
  constexpr int64_t worth_a_thread = 32;
  const auto call = [](int64_t begin, int64_t end, void* work) {
    (*static_cast<const Work*>(work))(begin, end);
  };
  torch_parallel_for(0, count, worth_a_thread, call, const_cast<Work*>(&work));
}

// Where image i of the batch lies: `chosen` tells which of `images` it is, if it is not simply the
// next one.
const uint8_t* image_of(const uint8_t* images, const int64_t* chosen, int64_t i, int64_t size) {
  return images + (chosen ? chosen[i] : i) * size;
}

// --- flips and shifts -------------------------------------------------------------------------

void fill_pixels(float* out, int64_t count, const float* fill, int64_t values) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < values; ++k) out[i * values + k] = fill[k];
}

void copy_row(const uint8_t* row, int64_t values, float* out) {
  for (int64_t i = 0; i < values; ++i) out[i] = row[i] / 255.0f;
}

template <int values>
void copy_row_mirrored(const uint8_t* row, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < values; ++k)
      out[i * values + k] = row[(count - 1 - i) * values + k] / 255.0f;
}

void copy_row_mirrored(const uint8_t* row, int64_t count, int64_t values, float* out) {
  // Known at compile time, the number of values lets the usual two be vectorised.
  if (values == 1) return copy_row_mirrored<1>(row, count, out);
  if (values == 3) return copy_row_mirrored<3>(row, count, out);
  for (int64_t i = 0; i < count; ++i)
    copy_row(row + (count - 1 - i) * values, values, out + i * values);
}

struct Shape {
  int64_t planes, height, width, values;
};

void flip_and_shift(const Shape& shape, const uint8_t* image, bool flipped, int64_t down,
                    int64_t right, const float* fill, float* out) {
  const auto [planes, height, width, values] = shape;
  const int64_t before = std::clamp(right, int64_t{0}, width);
  const int64_t after = std::clamp(-right, int64_t{0}, width);
  const int64_t seen = width - before - after;
  // Mirrored, a row loses its other end.
  const int64_t first = flipped ? before : after;
  for (int64_t plane = 0; plane < planes; ++plane, fill += values) {
    for (int64_t y = 0; y < height; ++y, out += width * values) {
      const int64_t source = y - down;
      if (source < 0 || source >= height) {
        fill_pixels(out, width, fill, values);
        continue;
      }
      const uint8_t* row = image + ((plane * height + source) * width + first) * values;
      float* visible = out + before * values;
      fill_pixels(out, before, fill, values);
      if (flipped)
        copy_row_mirrored(row, seen, values, visible);
      else
        copy_row(row, seen * values, visible);
      fill_pixels(visible + seen * values, after, fill, values);
    }
  }
}

// --- warps and colours ------------------------------------------------------------------------

// How the values of an image lie, as in augment.py: in planes, one a channel, or side by side.
template <int channels_, bool side_by_side>
struct Layout {
  static constexpr int channels = channels_;
  static constexpr int64_t between_pixels = side_by_side ? channels : 1;
  int64_t height, width;

  int64_t between_channels() const { return side_by_side ? 1 : height * width; }
  int64_t size() const { return height * width * channels; }
};

// A pixel of up to three channels, in one register.
typedef float Colour __attribute__((vector_size(16)));

Colour grey(float value) { return Colour{value, value, value, value}; }

// What is drawn for one image; angles in radians.
struct Change {
  bool flipped;
  float angle, down, right, hue;
  float scale, brightness, contrast, saturation;
};

// New colours are a matrix times the old ones plus an offset: see recolour in augment.py.
template <int channels>
struct Recolouring {
  float matrix[channels][channels];
  float offset;

  // `luma` holds the weights of the channels, `turn` a quarter turn of the chroma, row by row.
  Recolouring(const Change& change, const float* luma, const float* turn, float mean_luma) {
    const float cosine = change.saturation * std::cos(change.hue);
    const float sine = change.saturation * std::sin(change.hue);
    for (int to = 0; to < channels; ++to)
      for (int from = 0; from < channels; ++from) {
        const float turned = turn[to * channels + from];
        const float chroma = cosine * ((to == from) - luma[from]) + sine * turned;
        matrix[to][from] = change.brightness * change.contrast / 255 * (luma[from] + chroma);
      }
    offset = change.brightness * (1 - change.contrast) * mean_luma / 255;
  }
};

template <typename L>
float mean_luma(const uint8_t* image, const L& layout, const float* luma) {
  const int64_t pixels = layout.height * layout.width;
  float mean = 0;
  for (int c = 0; c < L::channels; ++c) {
    const uint8_t* first = image + c * layout.between_channels();
    uint32_t sum = 0;  // enough for 16 million pixels
    for (int64_t i = 0; i < pixels; ++i) sum += first[i * L::between_pixels];
    mean += luma[c] * static_cast<float>(sum) / static_cast<float>(pixels);
  }
  return mean;
}

// One image in a frame of the fill, one pixel wide: a sample from outside is clamped onto it.
template <typename L>
struct Frame {
  static constexpr int channels = L::channels;
  int64_t height, width;
  std::vector<Colour> pixels;
  std::vector<float> row;  // recoloured, a stretch for each channel

  Frame(const L& layout, const float* fill)
      : height(layout.height + 2), width(layout.width + 2), row(channels * layout.width) {
    Colour around = grey(0);
    for (int c = 0; c < channels; ++c) around[c] = fill[c];
    // The neighbours below and to the right of the last row, which have no weight, are there, too.
    pixels.assign((height + 1) * width + 1, around);
  }

  void hold(const uint8_t* image, const L& layout, const Recolouring<channels>& colours) {
    for (int64_t y = 0; y < layout.height; ++y) {
      recolour(image + y * layout.width * L::between_pixels, layout, colours);
      Colour* held = &pixels[(y + 1) * width + 1];
      for (int64_t x = 0; x < layout.width; ++x) {
        Colour colour = grey(0);
        for (int c = 0; c < channels; ++c) colour[c] = row[c * layout.width + x];
        held[x] = colour;
      }
    }
  }

  void recolour(const uint8_t* __restrict source, const L& layout,
                const Recolouring<channels> colours) {
    const int64_t count = layout.width, apart = layout.between_channels();
    float* __restrict out = row.data();
    for (int to = 0; to < channels; ++to)
      for (int64_t x = 0; x < count; ++x) {
        float value = colours.offset;
        for (int from = 0; from < channels; ++from)
          value += colours.matrix[to][from] * source[x * L::between_pixels + from * apart];
        out[to * count + x] = std::min(std::max(value, 0.0f), 1.0f);
      }
  }
};

// Where the pixels of one row of the result come from: the upper left of four neighbours in the
// frame, and how far it is from there.
struct Sources {
  std::vector<int32_t> corner;
  std::vector<float> right, down;

  explicit Sources(int64_t width) : corner(width), right(width), down(width) {}
};

// The way back from the result to the frame: a turn and a scale about the middle, after a shift.
struct Warp {
  float cosine, sine, mirror, down, right;

  explicit Warp(const Change& change)
      : cosine(std::cos(change.angle) / change.scale),
        sine(std::sin(change.angle) / change.scale),
        mirror(change.flipped ? -1.0f : 1.0f),
        down(change.down),
        right(change.right) {}

  template <typename L>
  void find(int64_t y, const Frame<L>& frame, Sources& sources) const {
    const float last_x = frame.width - 1, last_y = frame.height - 1;
    const float middle_x = last_x / 2, middle_y = last_y / 2;
    const float over_x = mirror * cosine, over_y = mirror * sine;
    const float from_middle_y = y + 1 - (middle_y + down);
    const float first_x = 1 - (middle_x + right);
    const int32_t width = static_cast<int32_t>(frame.width);
    int32_t* __restrict corner = sources.corner.data();
    float* __restrict to_the_right = sources.right.data();
    float* __restrict downwards = sources.down.data();
    for (int32_t x = 0; x < width - 2; ++x) {
      const float from_middle_x = static_cast<float>(x) + first_x;
      const float at_x = over_x * from_middle_x + over_y * from_middle_y + middle_x;
      const float at_y = cosine * from_middle_y - sine * from_middle_x + middle_y;
      const float inside_x = std::min(std::max(at_x, 0.0f), last_x);
      const float inside_y = std::min(std::max(at_y, 0.0f), last_y);
      const int32_t left = static_cast<int32_t>(inside_x);
      const int32_t top = static_cast<int32_t>(inside_y);
      corner[x] = top * width + left;
      to_the_right[x] = inside_x - static_cast<float>(left);
      downwards[x] = inside_y - static_cast<float>(top);
    }
  }
};

template <typename L>
void sample_row(const Frame<L>& frame, const Sources& sources, const L& layout, float* out) {
  const int64_t apart = layout.between_channels();
  for (int64_t x = 0; x < layout.width; ++x) {
    const Colour* upper = &frame.pixels[sources.corner[x]];
    const Colour* lower = upper + frame.width;
    const Colour right = grey(sources.right[x]), down = grey(sources.down[x]);
    // Written like this, it is exactly the fill between pixels that are.
    const Colour above = upper[0] + right * (upper[1] - upper[0]);
    const Colour below = lower[0] + right * (lower[1] - lower[0]);
    const Colour colour = above + down * (below - above);
    for (int c = 0; c < L::channels; ++c) out[x * L::between_pixels + c * apart] = colour[c];
  }
}

// What warp_and_recolour works on: see below.
struct Batch {
  const uint8_t* images;
  const int64_t* chosen;
  int64_t count, height, width;
  const uint8_t* flipped;
  const float *ranges, *factors, *luma, *turn, *fill;
  float* out;

  Change change(int64_t i) const {
    const float* range = ranges + i;
    const float* factor = factors + i;
    return {flipped[i] != 0, range[0],  range[count],  range[2 * count],  range[3 * count],
            factor[0],       factor[count], factor[2 * count], factor[3 * count]};
  }
};

template <typename L>
void warp_and_recolour(const Batch& batch, int64_t begin, int64_t end) {
  const L layout{batch.height, batch.width};
  Frame<L> frame(layout, batch.fill);
  Sources sources(layout.width);
  for (int64_t i = begin; i < end; ++i) {
    const uint8_t* image = image_of(batch.images, batch.chosen, i, layout.size());
    float* out = batch.out + i * layout.size();
    const Change change = batch.change(i);
    const float luma = mean_luma(image, layout, batch.luma);
    frame.hold(image, layout, {change, batch.luma, batch.turn, luma});
    const Warp warp(change);
    for (int64_t y = 0; y < layout.height; ++y) {
      warp.find(y, frame, sources);
      sample_row(frame, sources, layout, out + y * layout.width * L::between_pixels);
    }
  }
}

}  // namespace

extern "C" {

// images are (any, planes, height, width, values), of which `chosen`, unless it is null, picks
// `count`; out is (count, planes, height, width, values).
void splash_convert(const uint8_t* images, const int64_t* chosen, int64_t count, int64_t planes,
                    int64_t height, int64_t width, int64_t values, float* out) {
  const int64_t size = planes * height * width * values;
  share_out(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_row(image_of(images, chosen, i, size), size, out + i * size);
  });
}

// As above; `fill` has a value for each channel, the others for each image.
void splash_flip_and_shift(const uint8_t* images, const int64_t* chosen, int64_t count,
                           int64_t planes, int64_t height, int64_t width, int64_t values,
                           const uint8_t* flipped, const int64_t* down, const int64_t* right,
                           const float* fill, float* out) {
  const int64_t size = planes * height * width * values;
  share_out(count, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      flip_and_shift({planes, height, width, values}, image_of(images, chosen, i, size),
                     flipped[i] != 0, down[i], right[i], fill, out + i * size);
  });
}

// As above, for one channel or three. ranges are (4, count): angle, down, right, hue; factors are
// (4, count): scale, brightness, contrast, saturation; `luma` has a value for each channel, `turn`
// is a square of them.
void splash_warp_and_recolour(const uint8_t* images, const int64_t* chosen, int64_t count,
                              int64_t planes, int64_t height, int64_t width, int64_t values,
                              const uint8_t* flipped, const float* ranges, const float* factors,
                              const float* luma, const float* turn, const float* fill,
                              float* out) {
  const Batch batch{images,  chosen, count, height, width, flipped, ranges,
                    factors, luma,   turn,  fill,   out};
  const auto augment = planes * values == 1 ? warp_and_recolour<Layout<1, false>>
                       : values == 1        ? warp_and_recolour<Layout<3, false>>
                                            : warp_and_recolour<Layout<3, true>>;
  share_out(count, [&](int64_t begin, int64_t end) { augment(batch, begin, end); });
}

}  // extern "C"
