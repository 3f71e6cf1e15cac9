// Images of the explorer: sheets are decoded on demand, tiles are cut out of them.
"use strict";

const pictures = (stored) => {
  const samples = stored.tiles.filter((t) => t.startsWith("sample-"));
  const [height, wide] = stored.size;
  const stride = Math.ceil(wide / 8) * 8;
  const decoded = new Map();
  function sheet(source) {
    if (!decoded.has(source)) {
      const image = new Image();
      image.src = source;
      // A few sheets are cached; older ones are decoded again.
      if (decoded.size > 64) decoded.delete(decoded.keys().next().value);
      decoded.set(source, image.decode().then(() => image));
    }
    return decoded.get(source);
  }

  // Error and spread share one colour scale, from zero to the slice's largest value.
  const STOPS = [
    [0, 0, 4], [51, 10, 94], [120, 28, 109], [187, 55, 84], [237, 105, 37], [251, 180, 26],
    [252, 255, 164],
  ];
  function heat(grey) {
    const at = (grey / 255) * (STOPS.length - 1);
    const low = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[low].map((v, c) => v + (STOPS[low + 1][c] - v) * (at - low));
  }
  const HEAT = Array.from({ length: 256 }, (_, grey) => heat(grey));
  const isHeat = (view) => view === "sd" || view === "error";

  // Only the last request for a canvas is painted; marked tiles get a frame.
  const turns = new WeakMap();
  async function paint(canvas, slice, round, view, marked = []) {
    const turn = (turns.get(canvas) ?? 0) + 1;
    turns.set(canvas, turn);
    const shown = stored.slices[slice];
    const image = await sheet(view === "truth" ? shown.truth : shown.rounds[round]);
    if (turns.get(canvas) !== turn) return;
    const tiles = view === "samples" ? samples : [view];
    const columns = Math.ceil(Math.sqrt(tiles.length));
    canvas.width = wide * columns;
    canvas.height = height * Math.ceil(tiles.length / columns);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    tiles.forEach((tile, i) => {
      const from = tile === "truth" ? 0 : stored.tiles.indexOf(tile) * stride;
      context.drawImage(image, from, 0, wide, height,
        (i % columns) * wide, Math.floor(i / columns) * height, wide, height);
    });
    if (isHeat(view)) colour(context, canvas);
    context.strokeStyle = "#ff5c8a";
    context.lineWidth = Math.max(1, wide / 48);
    const half = context.lineWidth / 2;
    for (const i of view === "samples" ? marked : []) {
      context.strokeRect((i % columns) * wide + half, Math.floor(i / columns) * height + half,
        wide - 2 * half, height - 2 * half);
    }
    // A picture of few pixels is shown as it is, not as a blur.
    canvas.classList.toggle("pixels", stored.is_small);
    canvas.dataset.shown = `${slice}/${round}/${view}`;
  }
  function colour(context, canvas) {
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < pixels.data.length; i += 4) {
      const [r, g, b] = HEAT[pixels.data[i]];
      pixels.data[i] = r;
      pixels.data[i + 1] = g;
      pixels.data[i + 2] = b;
    }
    context.putImageData(pixels, 0, 0);
  }
  function blank(canvas) {
    turns.set(canvas, (turns.get(canvas) ?? 0) + 1);
    canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    canvas.dataset.shown = "nothing";
  }

  return { paint, blank, isHeat, samples };
};
