"""Page object of Locust's web UI: form, buttons, statistics, and the status line of inferload."""

import functools
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from chromium import Browser
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
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
    """Open page. Each query is a single script, so that a redraw cannot occur in between."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self) -> None:
        """Load the page when its server listens (Locust logs it slightly too early); wait for the form."""
        self.until(self._responds, "a response")
        self.browser.get(self.url)
        self.until(self._form_is_there, "the start form")

    def until(self, condition: Callable[[], Any], description: str) -> Any:
        """Wait until a condition is true; return its value."""
        wait = WebDriverWait(self.browser, PATIENCE_S, poll_frequency=0.3)
        try:
            return wait.until(lambda _browser: condition())
        except Exception as error:
            text = self.browser.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"waited for {description}; the page shows:\n{text}") from error

    # -- queries

    def line(self) -> str:
        """Return the status line of inferload; empty if hidden."""
        return str(self.browser.execute_script(_LINE))

    def header(self, label: str) -> str | None:
        """Return a value of the header (Host, Status, Users, ...); None if missing."""
        texts = self.browser.execute_script(_HEADER)
        return texts[texts.index(label) + 1] if label in texts[:-1] else None

    def statistics(self) -> dict[str, dict[str, str]]:
        """Return the rows of the Statistics tab by type ("": Aggregated), cells by title of the column."""
        rows = self.browser.execute_script(_TABLE)
        if not rows:
            return {}
        titles = [" ".join(title.split()) for title in rows[0]]
        return {row[0]: dict(zip(titles, row, strict=True)) for row in rows[1:]}

    def has_button(self, label: str) -> bool:
        """Return True if there is a button with this label (before text-transform by the style sheet)."""
        return bool(self.browser.find_elements(By.XPATH, _button(label)))

    def scenarios(self) -> list[str]:
        """Return the scenarios of the select."""
        select = Select(self.browser.find_element(By.NAME, "scenario"))
        return [option.get_attribute("value") or "" for option in select.options]

    def field_error(self) -> str:
        """Return the error at a field of the form; empty if there is none."""
        return str(
            self.browser.execute_script("return document.getElementById('inferload-field-error')?.innerText ?? ''")
        )

    def note(self) -> str:
        """Return the note on the run whose values the form has; empty if there is none."""
        return str(self.browser.execute_script("return document.getElementById('inferload-note')?.innerText ?? ''"))

    def refused(self) -> list[str]:
        """Return the scenarios of the form that cannot be chosen."""
        options = "document.getElementById('inferload-scenario-select').options"
        return list(
            self.browser.execute_script(f"return [...{options}].filter(each => each.disabled).map(each => each.value)")
        )

    # -- actions

    def press(self, label: str) -> None:
        """Wait for a button and click it."""
        self.until(lambda: self.has_button(label), f"the button {label}")
        self.click(_button(label))

    def click(self, xpath: str) -> None:
        """Click an element once nothing covers it, such as a dialog that is closing, and no redraw replaces it."""
        self.until(lambda: self._clicked(xpath), f"an uncovered {xpath}")

    def _clicked(self, xpath: str) -> bool:
        try:
            self.browser.find_element(By.XPATH, xpath).click()
        except (ElementClickInterceptedException, StaleElementReferenceException):
            return False
        return True

    def choose(self, scenario: str) -> None:
        """Select a scenario at the top of the form; wait until the form has its values."""
        self.until(lambda: self.browser.find_elements(By.ID, "inferload-scenario-select"), "the select of scenarios")
        Select(self.browser.find_element(By.ID, "inferload-scenario-select")).select_by_visible_text(scenario)
        self.until(lambda: self.load_words().startswith(f"{scenario}: "), f"the values of {scenario}")

    def fill(self, **fields: str) -> None:
        """Replace the values of fields by name."""
        self.until(self._form_is_there, "the form")
        for name, text in fields.items():
            self.until(functools.partial(self._typed, name, text), f"{text} in the field {name}")

    def _typed(self, name: str, text: str) -> bool:
        """Type into a field; return False if text was lost, such as by a change of focus."""
        field = self.browser.find_element(By.NAME, name)
        self.browser.execute_script("arguments[0].select()", field)
        field.send_keys(text)
        return field.get_attribute("value") == text

    def value(self, name: str) -> str | None:
        """Return the value of a field."""
        return self.browser.find_element(By.NAME, name).get_attribute("value")

    def load_values(self) -> tuple[str | None, ...]:
        """Return users, spawn rate and run time of the start form."""
        return tuple(self.value(name) for name in ("userCount", "spawnRate", "runTime"))

    def load_words(self) -> str:
        """Return the text on the scenario's load in the form; empty if missing."""
        return str(self.browser.execute_script("return document.getElementById('inferload-load')?.innerText ?? ''"))

    def submit(self) -> None:
        """Press START or UPDATE."""
        self.click(f"{_FORM}//button[@type='submit']")

    def _responds(self) -> bool:
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
