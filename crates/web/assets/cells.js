// One GPU as a cell: its value, and in every mode the sign of who has it. Signs differ in form; the page brings them.

export const UNKNOWN = 255;
export const FREE = 0, HELD = 1, SHARED = 2, FENCED = 3, CLOSED = 4, GONE = 5;

/** The part of a cell that is filled, in each mode that has an amount. */
const amounts = {
  activity: (cell) => (cell.activity === UNKNOWN ? null : cell.activity / 20),
  power: (cell) => (cell.power === UNKNOWN ? null : cell.power / 20),
  temp: (cell) => (cell.temp === UNKNOWN ? null : Math.min(1, Math.max(0, (cell.temp - 30) / 60))),
};

// Of one that is shared, so much of two sides is missing.
const CORNER = 0.65;
// From here on a finding takes the GPU out of use.
const GRAVE = 3;
const mark = (x) => [[x, 0.2, x, 0.6], [x, 0.72, x, 0.85]];
const NOTED = mark(0.5), BROKEN = [...mark(0.35), ...mark(0.65)];

export class Brush {
  constructor(pen, ink, signs) {
    Object.assign(this, { pen, ink, signs });
  }

  /** All of a cell, whatever was there. */
  draw(mode, cell, x, y, size) {
    const { pen, ink } = this, sign = this.signs[cell.holding], ground = this.ground(mode, cell, sign);
    if (!ground) pen.clearRect(x, y, size, size);
    else this.fill(ground, x, y, size, size);
    if (amounts[mode]) this.amount(amounts[mode](cell), sign, x, y, size);
    else if (mode === "health" && !sign.strokes.length) this.health(cell.health, x, y, size);
    if (sign.hollow) this.edge(x, y, size);
    if (sign.cut) this.cut(x, y, size);
    if (!sign.strokes.length) return;
    const plain = !ground || ground === ink.cell;
    // What is below may have any colour.
    if (plain) this.strokes(sign.strokes, ink.ground, x, y, size, 2);
    const colour = cell.holding === CLOSED ? ink.text : ink.bad;
    this.strokes(sign.strokes, plain ? colour : ink.ground, x, y, size, 0);
  }

  /** The colour below everything; none where only the edge is drawn. */
  ground(mode, cell, sign) {
    const { ink } = this, empty = sign.hollow ? null : ink.cell;
    if (mode === "holding") return cell.job ? ink.kind(cell.job) : empty;
    if (mode === "health" && cell.health) return cell.health >= GRAVE ? ink.bad : ink.warn;
    return empty;
  }

  fill(colour, x, y, width, height) {
    this.pen.fillStyle = colour;
    this.pen.fillRect(x, y, width, height);
  }

  /** As high as the value, so that it can be read without colour; a dot where it is not known. */
  amount(share, sign, x, y, size) {
    if (share === null) return this.dot(this.ink.sub, x, y, size);
    // Within the edge, where there is one.
    const rim = sign.hollow ? 1 : 0, high = Math.max(1, Math.round((size - 2 * rim) * share));
    this.fill(this.ink.scale[Math.round(share * 20)], x + rim, y + size - rim - high, size - 2 * rim, high);
  }

  health(health, x, y, size) {
    if (!health) return this.dot(this.ink.good, x, y, size);
    this.strokes(health >= GRAVE ? BROKEN : NOTED, this.ink.ground, x, y, size, 0);
  }

  dot(colour, x, y, size) {
    const { pen } = this;
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(x + size / 2, y + size / 2, Math.max(1, size / 8), 0, 7);
    pen.fill();
  }

  edge(x, y, size) {
    this.pen.strokeStyle = this.ink.edge;
    this.pen.lineWidth = 1;
    this.pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }

  /** With an edge, since what it is cut from may be as pale as the ground. */
  cut(x, y, size) {
    const { pen } = this;
    pen.fillStyle = this.ink.ground;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + size * CORNER, y);
    pen.lineTo(x, y + size * CORNER);
    pen.fill();
    this.strokes([[CORNER, 0, 0, CORNER]], this.ink.sub, x, y, size, 0);
  }

  strokes(list, colour, x, y, size, wider) {
    const { pen } = this;
    pen.strokeStyle = colour;
    pen.lineWidth = Math.max(1, size / 9) + wider;
    pen.beginPath();
    for (const [ax, ay, bx, by] of list) {
      pen.moveTo(x + ax * size, y + ay * size);
      pen.lineTo(x + bx * size, y + by * size);
    }
    pen.stroke();
  }
}
