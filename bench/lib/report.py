"""Rows with a verdict, printed as a table and kept as JSON."""

import json

from measure import median


class Report:
    def __init__(self, about):
        self.about = about
        self.rows = []

    def compare(self, what, unit, ours, theirs, target=None, more_is_better=True, note=""):
        """A row from samples of both; either may be None when it was not measured.

        The ratio always says how many times better tutti is; the target is its least value.
        """
        row = {"what": what, "unit": unit, "target": target, "note": note}
        for name, samples in (("tutti", ours), ("slurm", theirs)):
            row[name] = {"median": median(samples), "min": min(samples), "max": max(samples),
                         "samples": samples} if samples else None
        ratio = None
        if ours and theirs:
            a, b = row["tutti"]["median"], row["slurm"]["median"]
            ratio = (a / b if more_is_better else b / a) if a and b else None
        row["ratio"] = ratio
        row["verdict"] = None
        if target is not None and ratio is not None:
            row["verdict"] = "met" if ratio >= target else "MISSED"
        self._add(row)

    def fact(self, what, ours=None, theirs=None, met=None, target="", note=""):
        """A row of words, judged by the caller."""
        verdict = None if met is None else ("met" if met else "MISSED")
        self._add({"what": what, "unit": "", "tutti": ours, "slurm": theirs, "ratio": None,
                   "target": target, "verdict": verdict, "note": note})

    def _add(self, row):
        self.rows.append(row)
        print("  " + "  ".join(cell for cell in self._cells(row) if cell), flush=True)

    @staticmethod
    def _number(value):
        if value is None:
            return "–"
        if isinstance(value, str):
            return value
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f}"

    def _side(self, side):
        if isinstance(side, dict):
            text = self._number(side["median"])
            if len(side["samples"]) > 1:
                text += f" ({self._number(side['min'])}–{self._number(side['max'])})"
            return text
        return self._number(side)

    def _cells(self, row):
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}×"
        target = row["target"]
        if isinstance(target, (int, float)):
            target = f"≥ {target:g}×"
        unit = f", {row['unit']}" if row["unit"] else ""
        return [row["what"] + unit, self._side(row["tutti"]), self._side(row["slurm"]), ratio,
                target or "", row["verdict"] or ""]

    def table(self):
        head = ["measured", "tutti", "Slurm", "ratio", "target", "verdict"]
        lines = [head] + [self._cells(row) for row in self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

        def show(cells):
            left = cells[0].ljust(widths[0])
            return f"| {left} | " + " | ".join(
                c.rjust(w) for c, w in zip(cells[1:], widths[1:])) + " |"

        ruler = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
        text = [show(head), ruler] + [show(line) for line in lines[1:]]
        notes = list(dict.fromkeys(row["note"] for row in self.rows if row["note"]))
        return "\n".join(text + [""] + [f"- {note}" for note in notes])

    def missed(self):
        return [row["what"] for row in self.rows if row["verdict"] == "MISSED"]

    def save(self, path):
        with open(path, "w") as f:
            json.dump({"about": self.about, "rows": self.rows}, f, indent=1, ensure_ascii=False)
            f.write("\n")
