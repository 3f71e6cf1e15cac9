// A scan as it is acquired: line by line within a round, a decision after it, until it stops.
"use strict";

const player = (stored, explorer) => {
  const TICK = 28;
  const TICKS = 24;
  const PAUSE = 900;
  const T = stored.accelerations.length;
  const isStill = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let timer = null;
  let measured = [];

  // Lines may be chosen for each slice, or be the same for all. Without lines, each hundredth of
  // the measurement is drawn as one.
  let known = stored.lines;
  let all = 100;
  const noun = () => (known ? stored.words.measurements : "% of the measurement");
  function added(round) {
    if (known && round < T) return known.new[round];
    const share = round < T ? Math.round(all / stored.accelerations[round]) : all;
    const missing = Array.from({ length: all }, (_, i) => i).filter((i) => !measured.includes(i));
    return known ? missing : missing.slice(0, Math.max(0, share - measured.length));
  }
  function amount() {
    return known ? `${measured.length} of ${all} ${noun()}` : `${measured.length} ${noun()}`;
  }

  function draw(fresh) {
    const canvas = explorer.part("acquired");
    canvas.width = all;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    for (const line of measured) {
      context.fillStyle = style.getPropertyValue(fresh.includes(line) ? "--c1" : "--c0");
      context.fillRect(line, 0, 1, 1);
    }
    canvas.dataset.measured = measured.length;
    canvas.setAttribute("aria-label", `Measured so far: ${amount()}`);
  }

  const later = (step, wait) => { timer = setTimeout(step, wait); };

  function round(k) {
    const lines = added(k);
    const before = [...measured];
    const step = (count) => {
      const fresh = lines.slice(0, count);
      measured = [...before, ...fresh];
      draw(fresh);
      if (count < lines.length && !isStill) {
        const more = Math.max(1, Math.ceil(lines.length / TICKS));
        later(() => step(Math.min(lines.length, count + more)), TICK);
      } else {
        measured = [...before, ...lines];
        draw(lines);
        decide(k);
      }
    };
    step(0);
  }

  function decide(k) {
    const shown = explorer.show(k);
    explorer.caption(`${amount()}. ${shown.sentence}`);
    if (shown.ends) finish();
    else later(() => round(k + 1), PAUSE);
  }

  function finish() {
    clearTimeout(timer);
    timer = null;
    explorer.playing(false);
  }

  // The caption and the measured lines belong to the scan that was played, and to no other state.
  function reset() {
    if (timer !== null) finish();
    explorer.caption("");
    explorer.part("acquired").hidden = true;
  }

  function toggle() {
    if (timer !== null) {
      reset();
      explorer.redraw();
      return;
    }
    measured = [];
    known = explorer.shown().lines || stored.lines;
    all = known ? known.all : 100;
    explorer.playing(true);
    explorer.part("acquired").hidden = false;
    explorer.caption("Nothing is measured yet.");
    draw([]);
    later(() => round(0), isStill ? 0 : PAUSE / 3);
  }
  return { toggle, reset };
};
