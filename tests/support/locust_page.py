"""Locust's page as a person uses it: fields, buttons, the Statistics tab, and our line at its foot."""

import functools
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from chromium import Browser
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

PATIENCE_S = 60.0
_FORM = "//form[.//input[@name='userCount']]"
_TABLE = (
    "return [...document.querySelectorAll('table tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
)
_HEADER = "return document.querySelector('header').innerText.split('\\n').map(text => text.trim()).filter(text => text)"
_LINE = """
const line = document.getElementById('inferload-line');
return line && line.style.display !== 'none' ? line.firstChild.innerText : ''
"""


class LocustPage:
    """One page. Every look is a single script, so that a page that is being drawn anew cannot fall between two."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self) -> None:
        """Load it as soon as its server listens (Locust says so a moment too early), and wait until its form is there."""
        self.until(self._answers, "an answer")
        self.browser.get(self.url)
        self.until(self._form_is_there, "the start form")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds, and return what it gave."""
        wait = WebDriverWait(self.browser, PATIENCE_S, poll_frequency=0.1)
        try:
            return wait.until(lambda _browser: condition())
        except Exception as error:
            shown = self.browser.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"waited for {what}; the page shows:\n{shown}") from error

    # -- what it shows

    def line(self) -> str:
        """Our line; empty where it is not shown."""
        return str(self.browser.execute_script(_LINE))

    def header(self, label: str) -> str | None:
        """A value at the top (Host, Status, Users, ...); None where it is not there."""
        texts = self.browser.execute_script(_HEADER)
        return texts[texts.index(label) + 1] if label in texts[:-1] else None

    def statistics(self) -> dict[str, dict[str, str]]:
        """The rows of the Statistics tab by their type ("" is Aggregated), each cell by its column's title."""
        rows = self.browser.execute_script(_TABLE)
        if not rows:
            return {}
        titles = [" ".join(title.split()) for title in rows[0]]
        return {row[0]: dict(zip(titles, row, strict=True)) for row in rows[1:]}

    def has_button(self, label: str) -> bool:
        """Whether a button with this label is there; labels are as Locust writes them, before its style sheet."""
        return bool(self.browser.find_elements(By.XPATH, _button(label)))

    def scenarios(self) -> list[str]:
        """What the select offers."""
        return [option.get_attribute("value") or "" for option in self._scenario().options]

    # -- what is done

    def press(self, label: str) -> None:
        """Click a button, as soon as it is there."""
        self.until(lambda: self.has_button(label), f"the button {label}")
        self.browser.find_element(By.XPATH, _button(label)).click()

    def choose(self, scenario: str) -> None:
        """Unfold the custom parameters, take a scenario from the select, and wait until the form shows its values."""
        summary = self.browser.find_elements(By.CSS_SELECTOR, ".MuiAccordionSummary-root")[-1]
        if summary.get_attribute("aria-expanded") != "true":
            summary.click()
        field = self.browser.find_element(By.NAME, "scenario")
        self.until(field.is_displayed, "the select of scenarios")
        self._scenario().select_by_value(scenario)
        self.until(lambda: self.load_words().startswith(f"{scenario}: "), f"the values of {scenario}")

    def fill(self, **fields: str) -> None:
        """Type into fields of the form by their names, over what stands there."""
        self.until(self._form_is_there, "the form")
        for name, text in fields.items():
            self.until(functools.partial(self._typed, name, text), f"{text} in the field {name}")

    def _typed(self, name: str, text: str) -> bool:
        """Type into a field; False if text was lost, as when a dialog that opens takes the focus."""
        field = self.browser.find_element(By.NAME, name)
        self.browser.execute_script("arguments[0].select()", field)
        field.send_keys(text)
        return field.get_attribute("value") == text

    def value(self, name: str) -> str | None:
        """What stands in a field."""
        return self.browser.find_element(By.NAME, name).get_attribute("value")

    def load_values(self) -> tuple[str | None, ...]:
        """Users, spawn rate and run time in the start form."""
        return tuple(self.value(name) for name in ("userCount", "spawnRate", "runTime"))

    def load_words(self) -> str:
        """Our words in the form on the scenario's load; empty if they are not there."""
        return str(self.browser.execute_script("return document.getElementById('inferload-load')?.innerText ?? ''"))

    def submit(self) -> None:
        """Press the form's own button: START or UPDATE."""
        self.browser.find_element(By.XPATH, f"{_FORM}//button[@type='submit']").click()

    def _scenario(self) -> Select:
        return Select(self.browser.find_element(By.NAME, "scenario"))

    def _answers(self) -> bool:
        parts = urlsplit(self.url)
        try:
            with socket.create_connection((parts.hostname, parts.port)):
                return True
        except OSError:
            return False

    def _form_is_there(self) -> bool:
        return bool(self.browser.find_elements(By.XPATH, _FORM))


def _button(label: str) -> str:
    return f"//button[normalize-space()='{label}']"
