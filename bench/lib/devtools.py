"""A headless Chromium, driven over a pair of pipes. It talks to 127.0.0.1 alone and is gone at the end."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-extensions", "--disable-sync", "--no-first-run", "--hide-scrollbars",
    "--force-color-profile=srgb", "--font-render-hinting=none", "--remote-debugging-pipe",
]


class Browser:
    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if not program:
            raise SystemExit("chromium is missing: apt-get install chromium")
        self.profile = tempfile.mkdtemp(prefix="tutti-browser-")
        theirs_in, self.out = os.pipe()
        self.inp, theirs_out = os.pipe()

        def pipes():
            # Chromium reads commands from 3 and writes answers to 4.
            a, b = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(a, 3)
            os.dup2(b, 4)

        # A shell's children may have 3 and 4 open already: all others are closed after the dup.
        self.child = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.calls, self.rest, self.events = 0, b"", []

    def close(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, session=None, **params):
        self.calls += 1
        request = {"id": self.calls, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self.rest:
            more = os.read(self.inp, 1 << 20)
            if not more:
                raise RuntimeError("the browser is gone")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def page(self, width, height, scale=1):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Performance"):
            page.call(f"{domain}.enable")
        page.size(width, height, scale)
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)

    def light(self, which):
        features = [{"name": "prefers-color-scheme", "value": which}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def eval(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script, limit=30.0):
        """Asks until the expression is true; while a page loads there is nothing to ask."""
        end = time.monotonic() + limit
        safe = f"(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        while not self.eval(safe):
            if time.monotonic() > end:
                raise RuntimeError(f"waited {limit:.0f} s for {script}")
            time.sleep(0.02)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def log_in(self, base, token):
        self.go(f"{base}/login")
        self.eval(f"document.querySelector('[name=token]').value = {json.dumps(token)};"
                  "document.querySelector('form').submit()")
        self.wait("document.body.dataset.live && location.pathname === '/'")

    def complaints(self):
        """What the console said."""
        bad = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                bad.append(str(params["exceptionDetails"])[:300])
            if method == "Log.entryAdded" and params["entry"]["level"] == "error":
                bad.append(params["entry"]["text"])
        return bad
