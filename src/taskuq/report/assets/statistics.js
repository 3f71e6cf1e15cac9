// Calibration in the browser, in the order of the Python package and with its arithmetic:
// sums, products, quotients and comparisons of doubles, and exact ranks by whole numbers.
"use strict";

const statistics = (() => {
  const ROUNDING = 4 * Number.EPSILON;
  const TAIL = 1e-4;
  const LEAST = -Number.MAX_VALUE;
  const BISECTIONS = 60;
  const IDENTITY = { kind: "identity", low: 0, high: 1 };

  // An error rate as the decimal number that was written: a fraction of whole numbers.
  function exactLevel(text) {
    const value = Number(text);
    if (!(value > 0 && value < 1)) return null;
    const [digits, exponent = "0"] = String(value).split("e");
    const [whole, part = ""] = digits.split(".");
    const shift = part.length - Number(exponent);
    return shift >= 0
      ? { top: BigInt(whole + part), bottom: 10n ** BigInt(shift) }
      : { top: BigInt(whole + part) * 10n ** BigInt(-shift), bottom: 1n };
  }

  const ceiling = (top, bottom) => (top + bottom - 1n) / bottom;

  // k = ceil((1 - alpha)(n + 1))
  function coverageRank(n, level) {
    return Number(ceiling((level.bottom - level.top) * BigInt(n + 1), level.bottom));
  }

  function orderStatistic(scores, rank) {
    if (rank > scores.length) return Infinity;
    if (rank < 1) return -Infinity;
    return Float64Array.from(scores).sort()[rank - 1];
  }

  const divisor = (a, b) => (b === 0n ? a : divisor(b, a % b));

  // The smallest score q with (1 + sum over groups of the share above q) / (V + 1) <= alpha, where
  // V counts groups by the share of their cases that are given: all of them, or those of a class.
  function hierarchicalQuantile(scores, groups, level, cases) {
    return smallestWithin(scores, groups, level, ordered(scores, cases), cases, 1n, 1n);
  }

  function ordered(scores, cases) {
    return [...cases].sort((a, b) => compare(scores[a], scores[b]));
  }

  // The smallest score q of the given cases, in rising order, at which their shares above q and
  // the share `top / bottom` add up to at most alpha (V + 1); `all` are the cases counted in V.
  function smallestWithin(scores, groups, level, order, all, top, bottom) {
    // Counting in units of 1/common keeps the comparison free of rounding.
    const { common, weight } = shares(groups);
    const sum = (cases) => cases.reduce((total, i) => total + weight[groups.index[i]], 0n);
    const limit = bottom * level.top * (sum(all) + common) - top * level.bottom * common;
    if (limit < 0n) return Infinity;
    let above = sum(order);
    for (let i = 0; i < order.length; ) {
      const value = scores[order[i]];
      // Tied scores are all at most q.
      for (; i < order.length && scores[order[i]] === value; i++) {
        above -= weight[groups.index[order[i]]];
      }
      if (above * level.bottom * bottom <= limit) return value;
    }
    return Infinity;
  }

  function shares(groups) {
    const common = groups.sizes.reduce((c, n) => (c * BigInt(n)) / divisor(c, BigInt(n)), 1n);
    return { common, weight: groups.sizes.map((n) => common / BigInt(n)) };
  }

  // The same quantile of all cases if the new group misses at most half of its cases, unless the
  // calibration groups show outliers. `least` are lower bounds of the scores.
  function majorityQuantile(scores, least, groups, level) {
    const { sizes, index } = groups;
    const all = [...index.keys()];
    const order = ordered(scores, all);
    const smallest = (top, bottom, of = order) =>
      smallestWithin(scores, groups, level, of, all, BigInt(top), BigInt(bottom));
    const cautious = smallest(1, 1);
    if (level.top * BigInt(sizes.length + 1) < level.bottom || sizes.length < 2) return cautious;
    const eager = smallest(1, 2);
    const counts = (is) => all.reduce((sums, i) => {
      sums[index[i]] += is(i) ? 1 : 0;
      return sums;
    }, sizes.map(() => 0));
    const rising = ordered(least, all);
    // The threshold that a group would have faced, at least, had it been the new one.
    const isFree = 2n * level.top * BigInt(sizes.length + 1)
      >= level.bottom * BigInt(2 * sizes.length - 1);
    const most = (found) => [...sizes.keys()].filter((v) => 2 * found[v] > sizes[v]);
    // It is at least `floor`: only few groups can be outliers, so that few thresholds are needed.
    const floor = isFree ? -Infinity : smallestWithin(least, groups, level, rising, all, -1n, 2n);
    const suspects = new Set(most(counts((i) => scores[i] > floor)));
    const faced = sizes.map((_, v) => (!suspects.has(v) ? Infinity : isFree ? -Infinity
      : smallestWithin(least, groups, level, rising.filter((i) => index[i] !== v), all, 1n, 2n)));
    const above = counts((i) => scores[i] > faced[index[i]]);
    const outliers = most(above);
    if (!outliers.length) return eager;
    const sure = most(counts((i) => least[i] > eager));
    if (sure.length > 1) return cautious;
    // The new group may be no outlier, and a single calibration group may be one.
    return Math.max(cautious, ...(sure.length ? sure : outliers).map((v) => smallest(
      sizes[v] + 2 * above[v], 2 * sizes[v], order.filter((i) => index[i] !== v))));
  }

  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  // The quantile of the guarantee: for a new case, or a random case of a new group. The class of a
  // new case is unknown: the largest quantile serves all classes.
  function guaranteedQuantile(scores, level, unit, groups, classes) {
    return Math.max(...classes.map((cases) => {
      if (unit === "group") return hierarchicalQuantile(scores, groups, level, cases);
      return orderStatistic(cases.map((i) => scores[i]), coverageRank(cases.length, level));
    }));
  }

  // Linear interpolation between order statistics, with NumPy's two formulas.
  function between(below, above, share) {
    const step = above - below;
    return share < 0.5 ? below + step * share : above - step * (1 - share);
  }

  function sampleQuantile(ordered, start, p, omega) {
    const position = omega * (p - 1);
    const index = Math.floor(position);
    return between(
      ordered[start + index], ordered[start + Math.min(index + 1, p - 1)], position - index);
  }

  function clip(value, low, high) {
    return Math.min(Math.max(value, low), high);
  }

  function toScale(link, z) {
    if (link.kind === "identity") return z;
    const t = (z - link.low) / (link.high - link.low);
    const inner = clip(t, TAIL, 1 - TAIL);
    return Math.log(inner / (1 - inner)) + (t - inner) / (TAIL * (1 - TAIL));
  }

  function fromScale(link, w) {
    if (link.kind === "identity") return w;
    const edge = Math.log((1 - TAIL) / TAIL);
    const inner = clip(w, -edge, edge);
    const t = 1 / (1 + Math.exp(-inner)) + (w - inner) * (TAIL * (1 - TAIL));
    return link.low + (link.high - link.low) * t;
  }

  // Nested intervals of one case: anchors low <= high and a speed, on the scale of a link.
  function scoreOf(f, target) {
    const g = toScale(f.link, target);
    const residual = Math.max(f.low - g, g - f.high);
    if (f.scale > 0) return residual / f.scale;
    return residual <= 0 ? 0 : Infinity;
  }

  function intervalOf(f, q) {
    if (q === Infinity) return [-Infinity, Infinity];
    if (q === -Infinity) return [Infinity, -Infinity];
    const moving = f.scale > 0 ? 1 : 0;
    const reach = (q + ROUNDING * Math.abs(q)) * f.scale;
    // Beyond the anchors their own rounding counts too; at and within them it does not.
    const rounding = q > 0 ? ROUNDING : 0;
    const shift = f.shift ?? 0;
    let lower = f.low - rounding * ((Math.abs(f.low) + shift) * moving) - reach;
    let upper = f.high + rounding * ((Math.abs(f.high) + shift) * moving) + reach;
    if (f.link.kind !== "identity") {
      const slack = ROUNDING * (Math.abs(f.link.low) + Math.abs(f.link.high));
      lower = fromScale(f.link, lower) - slack;
      upper = fromScale(f.link, upper) + slack;
    }
    return [lower, upper];
  }

  // The threshold below which the interval is empty.
  function opening(f) {
    return f.scale > 0 ? (f.low - f.high) / (2 * f.scale) : LEAST;
  }

  // The threshold below which the interval, clipped to the range, is at most tau wide.
  function largestThreshold(f, tau, range) {
    if (f.link.kind !== "identity") return searchedThreshold(f, tau, range);
    const rest = tau - (f.high - f.low);
    const a = Math.max(f.low - range[0], 0);
    const b = Math.max(range[1] - f.high, 0);
    const near = Math.min(a, b);
    const far = Math.max(a, b);
    let reach = rest <= 2 * near ? rest / 2 : rest - near;
    if (rest > near + far) reach = Infinity;
    if (f.scale > 0) return reach / f.scale;
    return reach > 0 ? Infinity : -Infinity;
  }

  function searchedThreshold(f, tau, range) {
    const good = (q) => {
      const [a, b] = intervalOf(f, q);
      const lower = Math.max(a, range[0]);
      const upper = Math.min(b, range[1]);
      return lower > upper || upper - lower < tau;
    };
    let low = -1;
    let high = 1;
    for (let i = 0; i < BISECTIONS; i++) {
      if (good(high)) high *= 2;
      if (!good(low)) low *= 2;
    }
    if (good(high)) return Infinity;
    if (!good(low)) return -Infinity;
    for (let i = 0; i < BISECTIONS; i++) {
      const middle = low / 2 + high / 2;
      if (good(middle)) low = middle;
      else high = middle;
    }
    return low;
  }

  // A window of width tau that begins there, moved into its place, and how far its ends are from
  // the centre: infinitely far at an end of the place.
  function windowFrom(start, f, tau, place) {
    const [low, high] = place;
    const top = Math.max(low, high - tau);
    const lower = clip(start, low, top);
    const upper = Math.max(lower + tau, lower >= top ? high : -Infinity);
    return {
      lower, upper,
      below: lower <= low ? Infinity : f.high - toScale(f.link, lower),
      above: upper >= high ? Infinity : toScale(f.link, upper) - f.high,
    };
  }

  function startAround(f, tau) {
    return f.link.kind === "identity" ? f.high - tau / 2 : balanced(f.high, tau, f.link);
  }

  // The window that most probably contains the target, of that around the centre and all that
  // have an end at a quantile of the law of residuals.
  function probableWindow(f, tau, place, law) {
    const ends = law.map((q) => fromScale(f.link, f.high + f.scale * q));
    const starts = [startAround(f, tau), ...ends, ...ends.map((end) => end - tau)];
    let best = { missed: Infinity };
    for (const start of starts) {
      const window = windowFrom(start, f, tau, place);
      const missed = expit(logOdds(law, -window.below / f.scale))
        + expit(-logOdds(law, window.above / f.scale));
      if (missed < best.missed) best = { ...window, missed };
    }
    return best;
  }

  // Quantiles are remembered at log odds from -5 to 5, by halves; the law is logistic between.
  function logOdds(law, residual) {
    const below = law.filter((q) => q < residual).length;
    const j = clip(below - 1, 0, law.length - 2);
    return j / 2 - 5 + (0.5 / (law[j + 1] - law[j])) * (residual - law[j]);
  }

  function expit(odds) {
    return odds < 0 ? Math.exp(odds) / (1 + Math.exp(odds)) : 1 / (1 + Math.exp(-odds));
  }

  function balanced(center, tau, link) {
    const length = link.high - link.low;
    const a = tau / length;
    const w = 1 / (1 + Math.exp(-2 * clip(center, -300, 300)));
    const b = a + 2 * w * (1 - a);
    const root = Math.sqrt(Math.max(b * b + 4 * (1 - 2 * w) * w * (1 - a), 0));
    const t = (2 * w * (1 - a)) / (b + root);
    if (t >= TAIL && t + a <= 1 - TAIL) return link.low + length * t;
    let low = fromScale(link, center) - tau;
    let high = fromScale(link, center);
    for (let i = 0; i < BISECTIONS; i++) {
      const lower = low / 2 + high / 2;
      if (toScale(link, lower + tau) - center > center - toScale(link, lower)) high = lower;
      else low = lower;
    }
    return low / 2 + high / 2;
  }

  // What a rule sees in one case: when it stops, what it reports, and what scores.
  function examineInterval(f, tau, range) {
    return {
      lowest: opening(f),
      // Computed on demand: some policies do not need it, and a search takes long.
      get largest() {
        return largestThreshold(f, tau, range);
      },
      score: (z) => (range[0] <= z && z <= range[1] ? scoreOf(f, z) : Infinity),
      report: (threshold) => {
        const [lower, upper] = intervalOf(f, threshold);
        return [
          Math.min(Math.max(lower, range[0]), range[1]),
          Math.max(Math.min(upper, range[1]), range[0]),
        ];
      },
    };
  }

  // The risk is the predicted error over the window's reach; where a law of residuals is known, it
  // is that at which the probability of a miss would be as large under a logistic law, far out.
  function examineWindow(f, tau, range, place, weight, law) {
    const window = law
      ? probableWindow(f, tau, place, law) : windowFrom(startAround(f, tau), f, tau, place);
    const reach = Math.min(window.below, window.above);
    const steepness = reach > 0 ? weight / reach : Infinity;
    const risk = law ? weight / (Math.LN2 - Math.log(window.missed)) : steepness * f.scale;
    const lower = Math.max(window.lower, range[0]);
    const upper = Math.min(window.upper, range[1]);
    return {
      lowest: -Infinity,
      largest: -risk,
      window: [lower, upper],
      score: (z) => (lower <= z && z <= upper ? -Infinity : Infinity),
      report: () => [lower, upper],
    };
  }

  // Several tasks stop together: a case stops when all of them would, and is missed when one is.
  function together(tasks) {
    return {
      lowest: Math.max(...tasks.map((task) => task.lowest)),
      get largest() {
        return Math.min(...tasks.map((task) => task.largest));
      },
      get surely() {
        return Math.min(...tasks.map((task) => task.surely ?? task.largest));
      },
      score: (targets) => Math.max(...tasks.map((task, t) => task.score(targets[t]))),
      least: tasks.some((task) => task.least === null) ? null
        : (targets) => Math.max(...tasks.map((task, t) => (task.least ?? task.score)(targets[t]))),
      report: (threshold) => tasks.map((task) => task.report(threshold)),
    };
  }

  // The extremes of a case whose intervals are known within a range: of scores at its corners, of
  // thresholds over all centres and scales.
  function worstOf(corners, see, range) {
    const seen = corners.map(see);
    const centers = corners.map((f) => f.low);
    const scales = corners.map((f) => f.scale);
    const ends = [Math.min(...centers), Math.max(...centers)];
    const middle = (range[0] + range[1]) / 2;
    if (Number.isFinite(middle)) ends.push(clip(middle, ends[0], ends[1]));
    const tops = ends.flatMap((center) => [Math.min(...scales), Math.max(...scales)].map(
      (scale) => see({ ...corners[0], low: center, high: center, scale }).largest));
    return {
      lowest: Math.max(...seen.map((one) => one.lowest)),
      largest: Math.max(...tops),
      surely: Math.min(...tops),
      score: (z) => Math.max(...seen.map((one) => one.score(z))),
      // A window misses a target at every threshold or at none.
      least: seen[0].window ? (z) => {
        const isBeyond = seen.every((one) => z < one.window[0])
          || seen.every((one) => z > one.window[1]);
        return isBeyond ? Infinity : -Infinity;
      } : null,
    };
  }

  // The supremum of the thresholds at which the policy stops with a miss; arrays by round.
  // Earlier rounds count where they surely stop.
  function stoppingScore(lowest, largest, score, surely) {
    let result = -Infinity;
    for (let k = 0; k < largest.length; k++) {
      let top = Math.min(largest[k], score[k]);
      for (let i = 0; i < k; i++) {
        for (let j = 0; j < k; j++) {
          if (lowest[j] < top && top <= surely[j]) top = lowest[j];
        }
      }
      if (top > lowest[k]) result = Math.max(result, top);
    }
    return result;
  }

  return {
    IDENTITY, exactLevel, coverageRank, guaranteedQuantile, majorityQuantile, sampleQuantile,
    scoreOf, intervalOf, examineInterval, examineWindow, together, worstOf, stoppingScore,
  };
})();
