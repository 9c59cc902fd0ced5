"""The page of `tiderace lab play` in Chromium: it draws, follows its sliders, keeps its state in its address, and fits a telephone.

    play.py TIDERACE FOLDER

Needs `chromium` on the path. Pictures go into FOLDER. Prints lines `measured WHAT: ok` or what was seen instead.
"""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

LIMIT = 120
STATE = "rate=10M&rtt=40ms&queue=1BDP&loss=1%25&burst=1&connections=2&duration=4s&workload=bulk&seed=1&contender=cubic&contender=bbr3"


class Browser:
    """Chromium at the other end of two pipes (DevTools protocol)."""

    def __init__(self, profile):
        down, up = os.pipe(), os.pipe()

        def ends():
            # The descriptors that the browser reads from and writes to.
            read, write = os.dup(down[0]), os.dup(up[1])
            os.dup2(read, 3)
            os.dup2(write, 4)

        arguments = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "--disable-background-networking", "about:blank",
        ]
        self.process = subprocess.Popen(arguments, preexec_fn=ends, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down[0])
        os.close(up[1])
        self.to, self.of = os.fdopen(down[1], "wb", 0), os.fdopen(up[0], "rb", 0)
        self.rest, self.number, self.session, self.complaints = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            part = self.of.read(65536)
            if not part:
                raise SystemExit("Chromium has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.to.write(json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        name, of = message.get("method"), message.get("params", {})
        if name == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(of["args"]))
        elif name == "Runtime.exceptionThrown":
            self.complaints.append(str(of["exceptionDetails"]))
        elif name == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.complaints.append(of["entry"]["text"])

    def value(self, script):
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script):
        begun = time.monotonic()
        while not (seen := self.value(script)):
            if time.monotonic() - begun > LIMIT:
                raise SystemExit(f"never true: {script}; the page says {self.value('document.body.innerText')!r}")
            time.sleep(0.05)
        return seen

    def open(self, url):
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)
        self.until("document.body && document.body.dataset.ready")

    def picture(self, path):
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def end(self):
        self.process.kill()
        self.process.wait()


def measured(what, good, seen):
    print(f"measured {what}: {'ok' if good else seen}", flush=True)


def width(browser, pixels):
    browser.ask("Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False)


def main():
    program, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    server = subprocess.Popen([program, "lab", "play", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    url = re.search(r"http://\S+", server.stdout.readline()).group()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            checks(browser, url, program, folder)
        finally:
            browser.end()
            server.kill()


def checks(browser, url, program, folder):
    width(browser, 1280)
    browser.open(f"{url}#{STATE}")
    plots = browser.value("[...document.querySelectorAll('svg.plot')].map(plot => plot.querySelectorAll('path').length)")
    measured("five plots, with a line for each contender", plots == [2] * 5, plots)
    rows = browser.value("document.querySelectorAll('#figures tr').length")
    measured("a table of figures", rows >= 4, rows)

    move = "const rate = document.querySelector('[name=rate]'); rate.value = 30; rate.dispatchEvent(new Event('input', {bubbles: true})); location.hash"
    browser.value(move)
    browser.until("document.body.dataset.ready !== 'error' && !document.body.dataset.ready.startsWith('rate=10M')")
    shown = browser.value("document.getElementById('title').textContent")
    rate = browser.value("document.querySelector('[name=rate]').parentElement.querySelector('output').textContent")
    measured("a slider that moves runs again", rate == "1.6 Mbit/s" and "1.6" in shown, [rate, shown])

    state, table = browser.value("location.href"), browser.value("document.getElementById('figures').innerText")
    browser.open(state)
    again = browser.value("document.getElementById('figures').innerText")
    measured("the address holds the state", again == table and state.endswith(browser.value("document.body.dataset.ready")), [state, again, table])

    browser.session, session = None, browser.session
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=url.rstrip("/"))
    browser.session = session
    browser.ask("Page.bringToFront")
    browser.value("document.getElementById('copy').click()")
    browser.until("document.getElementById('copy').textContent === 'Copied'")
    copied = browser.value("navigator.clipboard.readText()")
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "play.toml").write_text(copied)
        run = subprocess.run([program, "lab", "run", "play.toml", "--seeds", "2"], cwd=scratch, capture_output=True, text=True)
    measured("the scenario that is copied runs", run.returncode == 0 and "cubic" in run.stdout, run.stderr)

    for name, pixels, scheme in (("desk", 1280, "light"), ("dark", 1280, "dark"), ("phone", 400, "light")):
        width(browser, pixels)
        browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        wide = browser.value("document.documentElement.scrollWidth")
        measured(f"fits {pixels} px, {scheme}", wide <= pixels, wide)
        browser.picture(folder / f"play-{name}.png")
    measured("no complaints in the console", not browser.complaints, browser.complaints)

    # The browser itself reports the status of what is refused.
    browser.open(f"{url}#{STATE.replace('rtt=40ms', 'rtt=800ms').replace('rate=10M', 'rate=190M')}")
    says = browser.value("document.getElementById('state').className + ' ' + document.getElementById('state').textContent")
    measured("what is too much is refused in words", says.startswith("bad ") and "too much for the page" in says, says)


main()
