"""The one table of keys: key, action, label and help.

`TABLE` is the source of Textual's bindings, the hints in the frame, the help screen and the command palette. Keys
follow the trajectory viewers and pagers that people know: `h/l` step, `H/L` trajectory, `j/k`, `g/G`, `/`, `f`, `s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

RUNS, LIVE, LIST, GROUPS, STEP = "runs", "live", "trajectories", "groups", "stepper"
COMPARE, DIFF, HELP, PLAY, CHAT = "compare", "diff", "help", "play", "chat"
BEHAVIOR, BESIDE, SCATTER, TIMELINE = "behavior", "side by side", "scatter", "timeline"
SCREEN_TITLES = {
    RUNS: "Runs",
    LIVE: "Live",
    LIST: "Trajectories",
    GROUPS: "Groups",
    STEP: "Stepper",
    COMPARE: "Compare runs",
    DIFF: "Diff",
    HELP: "Help",
    CHAT: "Chat",
    BEHAVIOR: "Behaviour",
    BESIDE: "Side by side",
    SCATTER: "Scatter",
    TIMELINE: "Timeline",
    PLAY: "Play",
}
EVERYWHERE = tuple(SCREEN_TITLES)
PAGES = NOT_LIVE = tuple(s for s in EVERYWHERE if s != LIVE)
PANES = (LIVE, STEP, PLAY, COMPARE)


@dataclass(frozen=True)
class Key:
    """One row of the table. Hints with a low `hint` come first; 0 means no hint."""

    screens: tuple[str, ...]
    keys: str
    shown: str
    action: str
    label: str
    help: str
    hint: int = 0


TABLE: tuple[Key, ...] = (
    # runs
    Key((RUNS,), "enter", "enter", "open", "open", "Open the run: live when it is running, else its trajectories", 1),
    Key((RUNS,), "l", "l", "live", "live", "Open the dashboard of the run", 3),
    Key((RUNS,), "t", "t", "trajectories", "trajectories", "Open the trajectories of the run", 4),
    Key((RUNS,), "space,m", "space", "mark", "mark", "Mark the run, to compare it", 5),
    Key((RUNS,), "c", "c", "compare", "compare", "Compare the marked runs: evaluations by task, curves, settings", 6),
    Key((RUNS,), "x", "x", "stop_run", "stop", "Ask a running run to save and stop"),
    Key((RUNS,), "R", "R", "rename", "rename", "Give the run another name", 8),
    Key((RUNS,), "D,delete", "D", "delete", "delete", "Delete the run and everything it recorded; forget a dump", 9),
    Key((RUNS,), "r", "r", "reload", "reload", "Look at the folder again"),
    # live
    Key((LIVE,), "enter", "enter", "open", "trajectories", "Open the trajectories; on an alert, its evidence", 1),
    Key((LIVE,), "space", "space", "pause", "pause", "Pause after this step, or go on; again takes it back", 2),
    Key((LIVE,), "x", "x", "stop", "stop", "Save a checkpoint and stop the run", 3),
    Key((LIVE,), "c", "c", "checkpoint", "checkpoint", "Save a checkpoint now", 4),
    Key((LIVE,), "m", "m", "next_chart", "metric", "Show the next chart", 6),
    Key((LIVE,), "M", "M", "choose_metrics", "choose", "Choose the metrics of the chart by typing, in their order"),
    Key((LIVE,), "L", "L", "log_scale", "log scale", "A logarithmic scale, or the plain one"),
    Key((LIVE,), "t", "t", "next_axis", "along", "Steps, time or tokens along the chart"),
    Key((LIVE,), "n", "n", "next_text(1)", "next text", "The next of the texts that are written now", 5),
    Key((LIVE,), "N", "N", "next_text(-1)", "", "The previous of the texts that are written now"),
    Key((LIVE,), "z", "z", "whole", "whole panel", "The panel in use alone, or all panels", 7),
    Key((LIVE,), "w", "w", "smooth", "smooth", "More smoothing of the curves; after the most, none"),
    Key((LIVE, BEHAVIOR), "plus,equals_sign", "+", "zoom_in", "zoom in", "Show half as many steps"),
    Key((LIVE, BEHAVIOR), "minus", "−", "zoom_out", "zoom out", "Show twice as many steps"),
    Key((LIVE, BEHAVIOR), "left,h", "h ←", "pan(-1)", "earlier", "Show earlier steps"),
    Key((LIVE, BEHAVIOR), "right,l", "l →", "pan(1)", "later", "Show later steps"),
    Key((LIVE, BEHAVIOR), "0", "0", "zoom_all", "all", "Show all steps"),
    Key((LIVE,), "v,B", "v", "behavior", "behaviour", "Actions, lengths, ends and components from step to step"),
    Key((LIVE,), "o", "o", "pager", "log", "Open the log in $PAGER"),
    # trajectories
    Key((LIST,), "enter,l,right", "enter", "open", "open", "Step through the trajectory", 1),
    Key((LIST,), "z", "z", "fold", "groups", "Fold rollouts into their groups, or open them again", 6),
    Key((LIST,), "b", "b", "histogram", "histogram", "Show or hide the histogram"),
    Key((LIST,), "m", "m", "next_value", "value", "The histogram of rewards, tokens or turns"),
    Key((LIST,), "left_square_bracket", "[", "bar(-1)", "", "Only the previous bar of the histogram"),
    Key((LIST,), "right_square_bracket", "]", "bar(1)", "", "Only the next bar of the histogram; after the last, all"),
    Key((LIST,), "left_square_bracket,right_square_bracket", "[/]", "bar(1)", "bar", "", 9),
    Key((LIST,), "r", "r", "reverse", "reverse", "Turn the order around"),
    Key((LIST, GROUPS), "c", "c", "clear", "clear", "Clear filter and search", 7),
    Key((LIST,), "F", "F", "follow", "follow", "Follow the newest while the run is active"),
    Key((LIST, GROUPS), "n", "n", "scroll(1)", "", "The next match of the search"),
    Key((LIST, GROUPS), "N", "N", "scroll(-1)", "", "The previous match"),
    Key((LIST,), "v", "v", "live", "live", "Go to the dashboard of the run"),
    Key((LIST, GROUPS), "B", "B", "behavior", "behaviour", "How the rollouts of the list behave from step to step", 9),
    Key((LIST, GROUPS, STEP), "u", "u", "over_steps", "prompt", "The prompt at all steps: how its rollouts differ", 9),
    # side by side
    Key((LIST, GROUPS, STEP), "a", "a", "side_by_side", "side by side", "All rollouts of the group in columns", 8),
    Key((BESIDE,), "enter", "enter", "open", "open", "Step through the rollout of the chosen column", 1),
    Key((BESIDE,), "h,left", "h ←", "column(-1)", "", "The column to the left"),
    Key((BESIDE,), "l,right", "l →", "column(1)", "", "The column to the right"),
    Key((BESIDE,), "h,l", "h/l", "column(1)", "column", "", 2),
    Key((BESIDE,), "H", "H", "columns(-1)", "", "As many columns to the left as fit"),
    Key((BESIDE,), "L", "L", "columns(1)", "", "As many columns to the right as fit"),
    Key((BESIDE,), "H,L", "H/L", "columns(1)", "page", "", 3),
    Key((BESIDE,), "z", "z", "whole_texts", "whole texts", "More of each text, or its beginning", 4),
    # scatter
    Key((LIST, GROUPS), "x", "x", "scatter", "scatter", "Two values of the rollouts against each other", 10),
    Key((SCATTER,), "enter", "enter", "open", "open", "Step through the rollouts of the point", 1),
    Key((SCATTER,), "t", "t", "trajectories", "list", "The list of the rollouts of the point", 2),
    Key((SCATTER,), "m", "m", "choose", "values", "Choose two values: the first along x, the second up", 3),
    Key((SCATTER,), "h,left", "h ←", "along(-1)", "", "To a point on the left"),
    Key((SCATTER,), "l,right", "l →", "along(1)", "", "To a point on the right"),
    # timeline
    Key((LIVE,), "i", "i", "timeline", "timeline", "The time of each step: waiting, generation, tools, update"),
    Key((TIMELINE,), "enter", "enter", "open", "trajectories", "The rollouts of the step", 1),
    # behaviour
    Key((BEHAVIOR,), "enter", "enter", "open", "trajectories", "The rollouts with this action or end", 1),
    Key((BEHAVIOR,), "s", "s", "steps", "steps", "Type steps to compare: 10 200, or 10..200 for those between", 2),
    # groups
    Key((GROUPS,), "enter,l,right", "enter", "open", "open", "Step through the rollouts of the group", 1),
    Key((GROUPS,), "z", "z", "back", "rollouts", "Open the groups again: one row a rollout", 2),
    Key((GROUPS,), "r", "r", "reverse", "reverse", "Turn the order around", 6),
    # stepper
    Key((STEP,), "h,left", "h ←", "step(-1)", "", "Previous step"),
    Key((STEP,), "l,right", "l →", "step(1)", "", "Next step"),
    Key((STEP,), "h,l", "h/l", "step(1)", "step", "", 1),
    Key((STEP,), "H,p", "H p", "rollout(-1)", "", "Previous trajectory of the list"),
    Key((STEP,), "L", "L", "rollout(1)", "", "Next trajectory of the list"),
    Key((STEP,), "n", "n", "match(1)", "", "Next match of the search, or next trajectory"),
    Key((STEP,), "N", "N", "match(-1)", "", "Previous match"),
    Key((STEP,), "H,L", "H/L", "rollout(1)", "trajectory", "", 2),
    Key((STEP,), "left_square_bracket", "[", "sibling(-1)", "", "Previous rollout of the group"),
    Key((STEP,), "right_square_bracket", "]", "sibling(1)", "", "Next rollout of the group"),
    Key((STEP,), "left_square_bracket,right_square_bracket", "[/]", "sibling(1)", "group", "", 5),
    Key((STEP,), "t", "t", "tokens", "tokens", "Tokens by mask, log-prob, advantage, trainer: again for the next", 3),
    Key((STEP,), "w", "w", "mismatch", "mismatch", "Go to the token of the worst mismatch; again for the next", 8),
    Key((STEP,), "d", "d", "diff", "diff", "Compare with another rollout of the group, or of the prompt", 4),
    Key((STEP,), "b", "b", "branch", "branch", "Sample continuations from this step, and compute its value", 8),
    Key((STEP,), "c", "c", "conversation", "conversation", "The whole conversation in one scroll, or one step", 7),
    Key((STEP,), "m", "m", "note", "note", "Put a note on the trajectory; words with # are labels to filter by"),
    Key((STEP, PLAY), "P", "P", "prompt", "prompt", "Show or hide the whole prompt and the task"),
    Key((STEP,), "i", "i", "image", "image", "Show or hide the image of the step", 9),
    Key((STEP,), "I", "I", "image_size", "", "Make the image larger or smaller"),
    Key((STEP,), "enter", "enter", "open_text", "open text", "Open the text that is marked, or fold it again", 6),
    Key((STEP, PLAY), "J", "J", "choose_text(1)", "", "Mark the next text that folds"),
    Key((STEP, PLAY), "K", "K", "choose_text(-1)", "", "Mark the text before that folds"),
    Key((STEP, PLAY), "Z", "Z", "open_all(True)", "", "Open all texts"),
    Key((STEP, PLAY), "z", "z", "open_all(False)", "", "Fold all texts"),
    Key((STEP, PLAY), "r", "r", "raw", "raw", "The exact texts, or the rendered ones; of tokens, their symbols"),
    Key((STEP,), "x", "x", "failed(1)", "failed call", "Go to the next step in which a call failed", 7),
    Key((STEP,), "X", "X", "failed(-1)", "", "Go to the step before in which a call failed"),
    Key((STEP,), "asterisk", "*", "same_tool(1)", "", "Go to the next step that calls the same tool"),
    Key((STEP,), "number_sign", "#", "same_tool(-1)", "", "Go to the step before that calls the same tool"),
    Key((STEP,), "T", "T", "thought", "", "Go to the next step with a thought of more than 500 tokens"),
    Key((STEP,), "f", "f", "filter", "filter", "List and visit only the steps that match an expression", 8),
    Key((STEP,), "less_than_sign", "<", "border(-4)", "", "More columns for the text"),
    Key((STEP,), "greater_than_sign", ">", "border(4)", "", "Fewer columns for the text"),
    Key((STEP,), "E", "E", "export_markdown", "", "Write the trajectory to a Markdown file"),
    Key((STEP,), "ctrl+n", "ctrl+n", "next_penalty", "penalised", "Go to the next step that was penalised"),
    # play
    Key((PLAY,), "enter,i", "enter", "type", "your turn", "Type the next turn: calls of tools, or plain words", 1),
    *(Key((PLAY,), str(n), str(n), f"choose({n})", "", f"Begin a call of tool {n}") for n in range(1, 10)),
    Key((PLAY,), "1", "1-9", "choose(1)", "tool", "", 2),
    Key((PLAY,), "ctrl+r", "ctrl+r", "model", "model", "The model's own continuation; again to begin with its turn", 3),
    Key((PLAY,), "n", "n", "another('next')", "next task", "Leave this rollout and play the next task", 4),
    Key((PLAY,), "a", "a", "another('again')", "again", "Leave this rollout and play the task again", 5),
    Key((PLAY,), "o", "o", "recorded", "recorded", "The rollouts that were recorded", 6),
    Key((PLAY,), "space", "space", "open_text", "open text", "Open the text that is marked, or fold it again", 7),
    # chat
    Key((LIVE,), "a", "a", "chat", "chat", "Chat with the policy that the run serves, or with a checkpoint of it", 5),
    Key((CHAT,), "enter", "enter", "write", "write", "Write a message", 1),
    Key((CHAT,), "1", "1", "rate('right')", "right", "Rate the last answer as right", 2),
    Key((CHAT,), "2", "2", "rate('wrong')", "wrong", "Rate the last answer as wrong", 3),
    Key((CHAT,), "e", "e", "correct", "correct", "Correct the text of the last answer", 4),
    Key((CHAT,), "i", "i", "inbox", "inbox", "Take the answer without feedback that is least certain", 5),
    Key((CHAT,), "b", "b", "base", "base", "Ask the base, version 0, the same", 6),
    Key((CHAT,), "v", "v", "version", "version", "Ask a kept version the same", 7),
    Key((CHAT,), "n", "n", "new", "new", "Begin a new conversation", 8),
    # lists and text
    Key(EVERYWHERE, "j,down", "j ↓", "scroll(1)", "", "Down"),
    Key(EVERYWHERE, "k,up", "k ↑", "scroll(-1)", "", "Up"),
    Key(PAGES, "pagedown,ctrl+d,ctrl+f", "pgdn", "page(1)", "", "One page down"),
    Key(PAGES, "pageup,ctrl+u,ctrl+b", "pgup", "page(-1)", "", "One page up"),
    Key(PAGES, "g,home", "g", "first", "", "To the first; from the first step, to the top of the text"),
    Key(PAGES, "G,end", "G", "last", "", "To the last; from the last step, to the end of the text"),
    Key(PANES, "tab", "tab", "next_pane(1)", "pane", "The next pane takes the scroll keys", 8),
    Key(PANES, "shift+tab", "shift+tab", "next_pane(-1)", "", "The previous pane takes the scroll keys"),
    Key((LIST, LIVE, GROUPS), "slash", "/", "search", "search", "Search the text of all trajectories", 5),
    Key((STEP,), "slash", "/", "search", "search", "Find in this trajectory", 6),
    Key((RUNS, LIST, GROUPS), "f", "f", "filter", "filter", "Show only rows that match an expression", 3),
    Key((RUNS, LIST, GROUPS), "s", "s", "sort", "sort", "Sort by the next column", 4),
    Key((DIFF,), "h,left", "h ←", "step(-1)", "", "Previous step that differs"),
    Key((DIFF,), "l,right", "l →", "step(1)", "", "Next step that differs"),
    Key((DIFF,), "h,l", "h/l", "step(1)", "step", "", 1),
    Key((DIFF,), "left_square_bracket", "[", "other(-1)", "", "Compare with the previous candidate"),
    Key((DIFF,), "right_square_bracket", "]", "other(1)", "", "Compare with the next candidate"),
    Key((DIFF,), "left_square_bracket,right_square_bracket", "[/]", "other(1)", "other", "", 2),
    Key((DIFF,), "p", "p", "pool", "pool", "Candidates: rollouts of this group, or of this prompt over the run", 3),
    Key((COMPARE,), "enter", "enter", "open", "side by side", "Both rollouts of a flipped task; from curves, back", 1),
    Key((COMPARE,), "m", "m", "next_chart", "metric", "Curves over each other; again for the next metric", 2),
    Key((COMPARE,), "w", "w", "smooth", "smooth", "More smoothing of the curves; after the most, none", 3),
    Key((COMPARE,), "a", "a", "all_keys", "all keys", "Only the settings that differ, or all", 4),
    # export, open, copy
    Key((LIST, STEP, DIFF, LIVE, COMPARE, BESIDE), "e", "e", "export", "export", "Write what is shown to a file", 10),
    Key((STEP, DIFF, LIST, BESIDE), "o", "o", "pager", "open", "Open this view in $PAGER", 11),
    Key((STEP, DIFF, LIST, BESIDE), "O", "O", "editor", "", "Open this view in $EDITOR"),
    Key((RUNS, LIST, STEP, DIFF), "y", "y", "copy", "copy", "Copy: the step, or the id of the row", 12),
    # everywhere
    Key((LIST, LIVE, GROUPS, STEP), "colon", ":", "go_to", "go to", "Go to a number, id, step or screen", 13),
    Key(EVERYWHERE, "ctrl+z", "ctrl+z", "app.suspend_process", "", "Back to the shell; fg comes back here"),
    Key((LIVE,), "question_mark,f1", "?", "help", "help", "This help (also F1)", 1),
    Key(NOT_LIVE, "question_mark,f1", "?", "help", "help", "This help", 98),
    Key(EVERYWHERE, "escape,backspace", "esc", "back", "back", "Back to the screen before", 2),
    Key(EVERYWHERE, "ctrl+t", "ctrl+t", "app.next_theme", "theme", "The next of four themes, two colour-blind-safe"),
    Key(EVERYWHERE, "ctrl+l", "ctrl+l", "app.repaint", "repaint", "Paint the whole screen again"),
    Key(EVERYWHERE, "q", "q", "app.quit", "quit", "Leave; a run goes on", 3),
)  # fmt: skip


def bindings(screen: str) -> list[BindingType]:
    """Return the Textual bindings of one screen."""
    return [
        Binding(key, row.action, row.help or row.label, show=False)
        for row in TABLE
        if _is_of(row, screen) and row.help
        for key in row.keys.split(",")
    ]


def hints(screen: str) -> list[Key]:
    """Return the hints of the frame by priority. Keys of the screen come before global keys."""
    rows = [r for r in TABLE if _is_of(r, screen) and r.hint]
    first: dict[str, Key] = {}
    for row in sorted(rows, key=lambda r: (r.screens == EVERYWHERE, r.hint)):
        first.setdefault(row.label, row)
    return list(first.values())


def helps(screen: str) -> list[Key]:
    """Return the rows of the help screen."""
    return [r for r in TABLE if _is_of(r, screen) and r.help]


def _is_of(row: Key, screen: str) -> bool:
    """Return whether a screen has this key. A screen without its own keys has the global ones."""
    return screen in row.screens or (row.screens == EVERYWHERE and screen not in SCREEN_TITLES)
