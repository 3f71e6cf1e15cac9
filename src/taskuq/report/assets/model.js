// From the stored calibration set and a setting (alpha, tau, score, policy, unit) to intervals and
// decisions. Nothing here touches the page.
"use strict";

const model = (stored) => {
  const T = stored.accelerations.length;
  const ends = (pair) => (pair ? pair.map(Number) : [-Infinity, Infinity]);
  const range = ends(stored.range);
  const calibration = {
    targets: doubles(stored.calibration.targets),
    group: stored.calibration.group && integers(stored.calibration.group),
  };
  const n = calibration.targets.length;
  const S = stored.slices.length;

  function bytes(text) {
    return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  }
  function doubles(text) {
    return new Float64Array(bytes(text));
  }
  function integers(text) {
    return new Int32Array(bytes(text));
  }
  function samplesOf(part) {
    const buffer = bytes(part.data);
    return part.type === "f4" ? new Float32Array(buffer) : new Float64Array(buffer);
  }

  // Which calibration cases a score is calibrated on: those it did not learn from.
  function members(record) {
    const index = record.index ? integers(record.index) : Int32Array.from({ length: n }, (_, i) => i);
    const targets = Float64Array.from(index, (i) => calibration.targets[i]);
    let groups = null;
    if (calibration.group) {
      const number = new Map();
      const numbered = Array.from(index, (i) => {
        const g = calibration.group[i];
        if (!number.has(g)) number.set(g, number.size);
        return number.get(g);
      });
      const sizes = new Array(number.size).fill(0);
      for (const g of numbered) sizes[g]++;
      groups = { index: numbered, sizes };
    }
    return { count: index.length, targets, groups };
  }

  // Nested intervals of every case and round, for an error rate: one object per case.
  // Where a score learns from all calibration cases, their scales are known within a range.
  function readFamilies(record, count, unit) {
    if (record.ordered) {
      const ordered = samplesOf(record.ordered);
      const p = stored.samples;
      return (round, i, alpha) => {
        const tail = alpha / 2;
        const start = (round * count + i) * p;
        return {
          low: statistics.sampleQuantile(ordered, start, p, tail),
          high: statistics.sampleQuantile(ordered, start, p, 1 - tail),
          scale: 1,
          link: statistics.IDENTITY,
        };
      };
    }
    const center = doubles(record.center);
    const own = record.scales ? record.scales[unit] : record;
    const scale = own.scale && doubles(own.scale);
    const wide = own.wide && doubles(own.wide);
    const links = record.links ?? [];
    return (round, i) => {
      const at = round * count + i;
      return {
        low: center[at],
        high: center[at],
        scale: scale ? scale[at] : 1,
        wide: wide ? wide[at] : null,
        link: links[round] ?? statistics.IDENTITY,
      };
    };
  }

  const known = new Map();
  function score(name, unit) {
    const key = `${name} ${unit}`;
    if (!known.has(key)) {
      const record = stored.scores[name];
      const set = members(record);
      known.set(key, {
        ...record,
        set,
        calibration: readFamilies(record.calibration, set.count, unit),
        shown: readFamilies(record.shown, S, unit),
      });
    }
    return known.get(key);
  }

  // How one case looks to a policy in one round.
  function examine(setting, which, round, i) {
    const policy = stored.policies[setting.policy];
    const base = score(policy.statistic ?? setting.score, setting.unit);
    const f = base[which](round, i, setting.alpha);
    const see = (family) => {
      if (!policy.statistic) return statistics.examineInterval(family, setting.tau, range);
      const place = ends(base.places[round]);
      return statistics.examineWindow(family, setting.tau, range, place, base.weights[round]);
    };
    if (f.wide == null) return see(f);
    return statistics.worstOf(see(f), see({ ...f, scale: f.wide }));
  }

  // The threshold of each round that keeps the policy's promise on the calibration cases.
  function thresholds(setting) {
    const kind = stored.policies[setting.policy].kind;
    const { set } = score(stored.policies[setting.policy].statistic ?? setting.score, setting.unit);
    const quantile = (scores) =>
      statistics.promisedQuantile(scores, setting.level, setting.unit, set.groups);
    const rounds = [...Array(T).keys()];
    const all = Array.from({ length: set.count }, (_, i) => {
      const seen = rounds.map((k) => examine(setting, "calibration", k, i));
      return { seen, scores: seen.map((s) => s.score(set.targets[i])) };
    });
    if (kind === "paper") return rounds.map((k) => quantile(all.map((c) => c.scores[k])));
    if (kind === "anytime") {
      return new Array(T).fill(quantile(all.map((c) => Math.max(...c.scores))));
    }
    let open = Infinity;
    const stopping = all.map((c) => {
      const lowest = c.seen.map((s) => s.lowest);
      open = Math.min(open, ...lowest);
      const surely = c.seen.map((s) => s.surely ?? s.largest);
      return statistics.stoppingScore(lowest, c.seen.map((s) => s.largest), c.scores, surely);
    });
    // Below every opening no case could stop; a larger threshold keeps the promise too.
    return new Array(T).fill(Math.max(quantile(stopping), open));
  }

  // The quantile of each round taken by itself.
  function quantiles(setting) {
    const { set, calibration: families } = score(setting.score, setting.unit);
    return Array.from({ length: T }, (_, k) => {
      const scores = Float64Array.from({ length: set.count }, (_, i) => {
        const f = families(k, i, setting.alpha);
        const narrow = statistics.scoreOf(f, set.targets[i]);
        if (f.wide == null) return narrow;
        return Math.max(narrow, statistics.scoreOf({ ...f, scale: f.wide }, set.targets[i]));
      });
      return statistics.promisedQuantile(scores, setting.level, setting.unit, set.groups);
    });
  }

  let last = { key: null };
  function calibrated(setting) {
    const { alpha, tau, score: name, policy, unit } = setting;
    const key = JSON.stringify([alpha, tau, name, policy, unit]);
    if (last.key !== key) {
      last = { key, quantiles: quantiles(setting), thresholds: thresholds(setting) };
    }
    return last;
  }

  // Everything the explorer says about one slice at one setting.
  function at(asked) {
    const alpha = Number(asked.alpha);
    const level = statistics.exactLevel(asked.alpha);
    if (!level) return null;
    const unit = asked.unit === "group" && calibration.group ? "group" : "case";
    const setting = { ...asked, alpha, level, unit, tau: Number(asked.tau) };
    const found = calibrated(setting);
    const rounds = stored.accelerations.map((acceleration, k) => {
      const family = score(asked.score, unit).shown(k, asked.slice, alpha);
      const [a, b] = statistics.intervalOf(family, found.quantiles[k]);
      const seen = examine(setting, "shown", k, asked.slice);
      const threshold = found.thresholds[k];
      return {
        acceleration,
        quantile: found.quantiles[k],
        interval: [Math.max(a, range[0]), Math.min(b, range[1])],
        threshold,
        report: seen.report(threshold),
        stops: seen.lowest <= threshold && threshold < seen.largest,
      };
    });
    const first = rounds.findIndex((r) => r.stops);
    const base = score(stored.policies[asked.policy].statistic ?? asked.score, unit);
    const by = (set) => (unit === "group" ? set.groups.sizes.length : set.count);
    const needed = Number((level.bottom + level.top - 1n) / level.top) - 1;
    return {
      rounds, unit, stop: first < 0 ? T : first, needed,
      units: by(base.set), cases: base.set.count,
      scoreUnits: by(score(asked.score, unit).set),
      rank: unit === "case"
        ? statistics.coverageRank(score(asked.score, unit).set.count, level) : null,
    };
  }

  return { at, rounds: T, slices: S };
};
