// From the stored calibration set and a setting (alpha, tau, score, policy, unit, within, task) to
// intervals and decisions. Several tasks stop together. Nothing here touches the page.
"use strict";

const model = (stored) => {
  const T = stored.accelerations.length;
  const ends = (pair) => (pair ? pair.map(Number) : [-Infinity, Infinity]);
  const tasks = stored.tasks.map((task) => ({
    ...task, range: ends(task.range), targets: doubles(task.targets),
  }));
  const group = stored.calibration_group && integers(stored.calibration_group);
  const label = stored.calibration_label && integers(stored.calibration_label);
  const n = tasks[0].targets.length;
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
    const targets = Array.from(index, (i) => tasks.map((task) => task.targets[i]));
    let groups = null;
    if (group) {
      const number = new Map();
      const numbered = Array.from(index, (i) => {
        const g = group[i];
        if (!number.has(g)) number.set(g, number.size);
        return number.get(g);
      });
      const sizes = new Array(number.size).fill(0);
      for (const g of numbered) sizes[g]++;
      groups = { index: numbered, sizes };
    }
    const all = [...index.keys()];
    const named = label ? [...new Set(Array.from(index, (i) => label[i]))] : [];
    const classes = named.map((name) => all.filter((at) => label[index[at]] === name));
    return { count: index.length, targets, groups, all: [all], class: classes };
  }

  // Centres and scales at each corner, from the shifts of the centres in units of the scales.
  function shifted({ scales, corners }, mean) {
    const known = scales.map(doubles);
    return corners.map((corner) => {
      const scale = known[corner.scale];
      const values = doubles(corner.values);
      const index = bytes(corner.index);
      const Places = index.byteLength === mean.length ? Uint8Array : Uint16Array;
      const center = Float64Array.from(new Places(index), (k, at) => {
        const product = values[k] * scale[at];
        const move = Number.isNaN(product) ? values[k] : product;
        return Number.isFinite(move) ? mean[at] + move : move;
      });
      return { center, scale };
    });
  }

  // Nested intervals of every case and round, for an error rate: one object per case.
  // Where a score learns from all calibration cases, their centres and scales are known within a
  // range, and given at its corners.
  function readFamilies(record, count, fit) {
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
    const mean = record.mean && doubles(record.mean);
    const own = record.units ? shifted(record.units[fit], mean) : [{
      center: doubles(record.center),
      scale: record.scale && doubles(record.scale),
    }];
    const links = record.links ?? [];
    return (round, i) => {
      const at = round * count + i;
      const corners = own.map(({ center, scale }) => ({
        low: center[at],
        high: center[at],
        scale: scale ? scale[at] : 1,
        shift: mean ? Math.abs(center[at] - mean[at]) : 0,
        link: links[round] ?? statistics.IDENTITY,
      }));
      return { ...corners[0], corners };
    };
  }

  const known = new Map();
  // Policies learn for each class what intervals by themselves learn from all of them.
  function score(name, unit, task, within = "all") {
    const key = `${name} ${unit} ${task} ${within}`;
    if (!known.has(key)) {
      const record = tasks[task].scores[name];
      const set = members(record);
      known.set(key, {
        ...record,
        set,
        calibration: readFamilies(record.calibration, set.count, `${unit} ${within}`),
        shown: readFamilies(record.shown, S, `${unit} ${within}`),
      });
    }
    return known.get(key);
  }

  // How one case looks to a policy in one round, all tasks together.
  function examine(setting, which, round, i) {
    const policy = stored.policies[setting.policy];
    const bases = tasks.map((_, t) =>
      score(policy.statistic ?? setting.score, setting.unit, t, setting.within));
    const families = bases.map((base) => base[which](round, i, setting.alpha));
    const see = (family, t) => {
      const { range } = tasks[t];
      if (!policy.statistic) return statistics.examineInterval(family, setting.taus[t], range);
      const place = ends(bases[t].places[round]);
      return statistics.examineWindow(family, setting.taus[t], range, place,
        bases[t].weights[round], bases[t].residuals?.[round]);
    };
    return statistics.together(families.map((f, t) => {
      if (!(f.corners?.length > 1)) return see(f, t);
      return statistics.worstOf(f.corners, (family) => see(family, t), tasks[t].range);
    }));
  }

  // The threshold of each round that satisfies the guarantee on the calibration cases.
  function thresholds(setting) {
    const kind = stored.policies[setting.policy].kind;
    const { set } = score(
      stored.policies[setting.policy].statistic ?? setting.score, setting.unit, 0);
    const quantile = (scores) =>
      statistics.guaranteedQuantile(
        scores, setting.level, setting.unit, set.groups, set[setting.within]);
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
    const knowsLeast = all.every((c) => c.seen.every((s) => s.least));
    const least = [];
    const stopping = all.map((c, i) => {
      const lowest = c.seen.map((s) => s.lowest);
      open = Math.min(open, ...lowest);
      const largest = c.seen.map((s) => s.largest);
      const surely = c.seen.map((s) => s.surely ?? s.largest);
      if (knowsLeast) {
        const scores = c.seen.map((s) => s.least(set.targets[i]));
        least.push(statistics.stoppingScore(lowest, surely, scores, largest));
      }
      return statistics.stoppingScore(lowest, largest, c.scores, surely);
    });
    const found = setting.unit === "group" && setting.within === "all" && knowsLeast
      ? statistics.majorityQuantile(stopping, least, set.groups, setting.level)
      : quantile(stopping);
    // Below every opening no case could stop; a larger threshold satisfies the guarantee too.
    return new Array(T).fill(Math.max(found, open));
  }

  // The quantile of each round and the shown task, taken by itself.
  function quantiles(setting) {
    const { set, calibration: families } = score(setting.score, setting.unit, setting.task);
    return Array.from({ length: T }, (_, k) => {
      const scores = Float64Array.from({ length: set.count }, (_, i) => {
        const f = families(k, i, setting.alpha);
        const target = set.targets[i][setting.task];
        return Math.max(...(f.corners ?? [f]).map((corner) => statistics.scoreOf(corner, target)));
      });
      return statistics.guaranteedQuantile(
        scores, setting.level, setting.unit, set.groups, set[setting.within]);
    });
  }

  let last = { key: null };
  function calibrated(setting) {
    const { alpha, taus, score: name, policy, unit, within, task } = setting;
    const key = JSON.stringify([alpha, taus, name, policy, unit, within, task]);
    if (last.key !== key) {
      last = { key, quantiles: quantiles(setting), thresholds: thresholds(setting) };
    }
    return last;
  }

  // The width to stop at of each task: "0.1,20"; the last one holds for all others.
  function widths(text) {
    const given = String(text).split(",").map(Number);
    return tasks.map((_, t) => given[Math.min(t, given.length - 1)]);
  }

  // Intervals and decisions of one slice at one setting.
  function at(asked) {
    const alpha = Number(asked.alpha);
    const level = statistics.exactLevel(asked.alpha);
    if (!level) return null;
    const unit = asked.unit === "group" && group ? "group" : "case";
    const within = asked.within === "class" && label ? "class" : "all";
    const task = asked.task ?? 0;
    const setting = { ...asked, alpha, level, unit, within, task, taus: widths(asked.tau) };
    const found = calibrated(setting);
    const { range } = tasks[task];
    const rounds = stored.accelerations.map((acceleration, k) => {
      const family = score(asked.score, unit, task).shown(k, asked.slice, alpha);
      const [a, b] = statistics.intervalOf(family, found.quantiles[k]);
      const seen = examine(setting, "shown", k, asked.slice);
      const threshold = found.thresholds[k];
      return {
        acceleration,
        quantile: found.quantiles[k],
        interval: [Math.max(a, range[0]), Math.min(b, range[1])],
        threshold,
        report: seen.report(threshold)[task],
        reports: seen.report(threshold),
        // A policy by risk stops if the risk is below its limit, the negative threshold.
        risk: stored.policies[asked.policy].statistic ? -seen.largest : null,
        stops: seen.lowest <= threshold && threshold < seen.largest,
      };
    });
    const first = rounds.findIndex((r) => r.stops);
    const base = score(stored.policies[asked.policy].statistic ?? asked.score, unit, 0);
    const mine = score(asked.score, unit, task).set;
    // Cases of a class count for their share of a group.
    const worth = (set, cases) => (unit === "case" ? cases.length
      : cases.reduce((sum, i) => sum + 1 / set.groups.sizes[set.groups.index[i]], 0));
    const units = (set) => (unit === "group" ? set.groups.sizes.length : set.count);
    const needed = Number((level.bottom + level.top - 1n) / level.top) - 1;
    return {
      rounds, unit, within, stop: first < 0 ? T : first, needed,
      units: units(base.set), scoreUnits: units(mine),
      least: Math.min(...base.set[within].map((cases) => worth(base.set, cases))),
      rank: unit === "case" && within === "all" ? statistics.coverageRank(mine.count, level) : null,
    };
  }

  return { at, widths, rounds: T, slices: S };
};
