"""Conversations for bench/prefix: who asks what and when, and what round robin could take of it."""

import bisect
import collections
import math
import random

# Blocks of the estimate below; the servers' own are finer.
BLOCK = 128
# Talks are followed from so long before the start, so that it begins in the middle of a day.
BEFORE_S = 4000.0


def log_normal(median, sigma, most):
    return lambda dice: max(1, int(min(most, median * math.exp(sigma * dice.gauss(0, 1)))))


def geometric(mean):
    def turns(dice):
        count = 1
        while dice.random() < 1 - 1 / mean:
            count += 1
        return count
    return turns


def log_uniform(count, low, high, seed=5):
    dice = random.Random(seed)
    return [int(low * (high / low) ** dice.random()) for _ in range(count)]


class Workload:
    """Tokens and seconds. The nth system prompt is chosen in proportion to 1/n."""

    def __init__(self, says, systems, opening, question, answer, turns, pause):
        self.says, self.systems = says, systems
        self.opening, self.question, self.answer = opening, question, answer
        self.turns, self.pause = turns, pause
        self.popular = list(self._sums(1 / (n + 1) for n in range(len(systems))))

    @staticmethod
    def _sums(weights):
        total = 0
        for weight in weights:
            total += weight
            yield total

    def system(self, dice):
        return bisect.bisect_left(self.popular, dice.random() * self.popular[-1])

    def talk(self, dice):
        system, turns = self.system(dice), []
        for turn in range(self.turns(dice)):
            question = self.opening if turn == 0 else self.question
            turns.append((question(dice), self.answer(dice), self.pause(dice)))
        return system, turns


# Seconds between an answer and the next question: a log-normal fit to Mooncake's public trace.
THINKS = log_normal(115, 1.0, 1800)

# Fixed before the first run. Where the figures are from is in docs/benchmarks.md.
WORKLOADS = {
    # The same as in crates/serve/src/logic/tests/chat: what was simulated so far.
    "chat": Workload(
        "8 system prompts of 160 to 960 tokens, 6 turns, 20 s to think",
        [320, 640, 160, 480, 960, 320, 160, 640],
        log_normal(120, 1.0, 8000), log_normal(120, 1.0, 8000), log_normal(220, 0.6, 2000),
        geometric(6), lambda dice: dice.expovariate(1 / 20)),
    # Many customers with long instructions, as in llm-d's published comparison, and ShareGPT's messages.
    "assistants": Workload(
        "150 system prompts of 1,000 to 4,000 tokens, 3 to 10 turns, 2 to 3 minutes to think",
        log_uniform(150, 1000, 4000),
        log_normal(100, 1.0, 8000), log_normal(100, 1.0, 8000), log_normal(280, 0.6, 2000),
        lambda dice: dice.randint(3, 10), THINKS),
    # Mooncake's public hour of conversations: one short system prompt, long documents, few turns.
    "documents": Workload(
        "one system prompt of 500 tokens, documents of 6,000 in the median, 1.5 turns, 2 to 3 minutes to think",
        [500],
        log_normal(5500, 1.25, 100_000),
        lambda dice: log_normal(30, 1.0, 500)(dice) if dice.random() < 0.75
        else log_normal(2500, 1.1, 40_000)(dice),
        log_normal(300, 0.6, 2000), geometric(1.5), THINKS),
}


def trace(workload, talks_per_s, end_s, token_s, seed):
    """Poisson arrivals. What a talk said before the start is past; when, is told by answers in good time."""
    dice = random.Random(seed)
    at, talks = -BEFORE_S, []
    while True:
        at += dice.expovariate(talks_per_s)
        if at >= end_s:
            return {"systems": workload.systems, "talks": talks}
        system, turns = workload.talk(dice)
        asks, past = at, 0
        while past < len(turns) and asks < 0:
            asks += answer_s(turns[past], token_s) + turns[past][2]
            past += 1
        if past < len(turns) and 0 <= asks < end_s:
            talks.append({"at": asks, "system": system, "past": past, "turns": turns})


def answer_s(turn, token_s):
    return 1 + turn[1] * token_s


def requests(trace, token_s, end_s):
    """`(time, system, talk, tokens of the system prompt, of what was said before, and of all)`."""
    found = []
    for number, talk in enumerate(trace["talks"]):
        at, said = talk["at"], 0
        for turn, (question, answer, pause) in enumerate(talk["turns"]):
            if turn >= talk["past"]:
                if at >= end_s:
                    break
                found.append((at, talk["system"], number, said + question, said + question + answer))
                at += answer_s(talk["turns"][turn], token_s) + pause
            said += question + answer
    return sorted(found)


class Cache:
    """Blocks, the least recently used first. None: without bound."""

    def __init__(self, tokens):
        self.blocks, self.most = collections.OrderedDict(), tokens and tokens // BLOCK

    def ask(self, blocks, kept):
        """How many are there; then `kept` are."""
        hit = 0
        while hit < len(blocks) and blocks[hit] in self.blocks:
            hit += 1
        for block in reversed(kept):
            self.blocks[block] = True
            self.blocks.move_to_end(block)
        while self.most and len(self.blocks) > self.most:
            self.blocks.popitem(last=False)
        return hit


def in_turn(trace, servers, caches, warm_up_s, end_s):
    """What would come of round robin if nobody had to wait: hit rate, and prefill work as a part of what
    the servers can do. With one cache without bound, what could be hit at all."""
    hit = tokens = work = 0
    for n, (at, system, talk, asked, after) in enumerate(requests(trace, servers.token_s, end_s)):
        head = [(-1 - system, k) for k in range(trace["systems"][system] // BLOCK)]
        body = [(talk, k) for k in range(after // BLOCK)]
        asks = head + body[:asked // BLOCK]
        found = caches[n % len(caches)].ask(asks, head + body) * BLOCK
        if at >= warm_up_s:
            whole = trace["systems"][system] + asked
            hit, tokens = hit + found, tokens + whole
            work += servers.prefill_overhead_s + (whole - found) / servers.prefill_tokens_per_s
    return hit / tokens, work / (end_s - warm_up_s) / servers.replicas


def at_load(workload, load, servers, warm_up_s, end_s, seed):
    """The trace under which round robin leaves this part of the servers' time for prefill."""
    rate = servers.replicas
    for _ in range(12):
        made = trace(workload, rate, end_s, servers.token_s, seed)
        robin = in_turn(made, servers, [Cache(servers.cache_tokens) for _ in range(servers.replicas)],
                        warm_up_s, end_s)
        if abs(robin[1] / load - 1) < 0.03:
            break
        rate *= load / robin[1]
    most = in_turn(made, servers, [Cache(None)], warm_up_s, end_s)[0]
    return made, {"talks_per_s": rate, "robin_hit": robin[0], "robin_work": robin[1], "most_hit": most}
