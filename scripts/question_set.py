# SPDX-License-Identifier: Apache-2.0
"""Questions with known answers: some of general knowledge with four choices, and sums. They are few and easy: a score
shows that a server answers as its model does, and does not rank models."""

import random
import re
from dataclasses import dataclass

LETTERS = "ABCD"
# A question, its right answer, and three wrong ones.
FACTS = (
    ("Which planet is closest to the sun?", "Mercury", "Venus", "Mars", "Neptune"),
    ("Which gas do plants take in from the air to grow?", "carbon dioxide", "helium", "argon", "neon"),
    ("What is the capital of Japan?", "Tokyo", "Seoul", "Beijing", "Bangkok"),
    ("How many legs does a spider have?", "eight", "six", "ten", "four"),
    ("Which of these is a mammal?", "a whale", "a shark", "a trout", "a frog"),
    ("What does water become when it freezes?", "ice", "steam", "sand", "oil"),
    ("Which instrument has black and white keys?", "the piano", "the violin", "the drum", "the flute"),
    ("Which ocean lies between Europe and North America?", "the Atlantic", "the Pacific", "the Indian", "the Arctic"),
    ("What is the chemical symbol of gold?", "Au", "Ag", "Fe", "Pb"),
    ("How many minutes are in two hours?", "120", "60", "90", "200"),
    ("Which animal gives wool?", "a sheep", "a snake", "a hen", "a fish"),
    ("Which organ pumps blood?", "the heart", "the lung", "the liver", "the skin"),
    ("What is the capital of France?", "Paris", "Rome", "Madrid", "Berlin"),
    ("Which shape has three sides?", "a triangle", "a square", "a circle", "a pentagon"),
    ("What do bees make?", "honey", "milk", "silk", "salt"),
    ("In which direction does the sun rise?", "east", "west", "north", "south"),
    ("Which of these is a prime number?", "13", "15", "21", "27"),
    ("What is the opposite of hot?", "cold", "loud", "heavy", "early"),
    ("Which continent is Egypt in?", "Africa", "Europe", "Australia", "South America"),
    ("Which metal does a common magnet attract?", "iron", "copper", "silver", "tin"),
    ("How many days does a leap year have?", "366", "365", "364", "360"),
    ("Who wrote the play Hamlet?", "Shakespeare", "Tolstoy", "Homer", "Goethe"),
    ("Which language is spoken in Brazil?", "Portuguese", "Dutch", "Polish", "Greek"),
    ("What is the largest planet of the solar system?", "Jupiter", "Earth", "Mercury", "Mars"),
    ("Which of these floats on water?", "a cork", "a coin", "a brick", "a nail"),
    ("Which sense do ears serve?", "hearing", "sight", "taste", "smell"),
    ("What is frozen rain in soft white flakes called?", "snow", "fog", "dew", "smoke"),
    ("Which tool measures temperature?", "a thermometer", "a ruler", "a scale", "a compass"),
    ("In Python, which keyword defines a function?", "def", "func", "sub", "let"),
    ("In Python, what does len([1, 2, 3]) return?", "3", "2", "6", "1"),
    ("Which data structure gives back first what came first?", "a queue", "a stack", "a heap", "a tree"),
    ("Which status code of HTTP means that nothing was found?", "404", "200", "301", "500"),
    ("How many bits does a byte have?", "8", "4", "16", "10"),
    ("What is the binary number 101 in decimal?", "5", "3", "6", "101"),
    ("Which command lists files on Linux?", "ls", "cd", "rm", "ps"),
    ("Which language are styles of web pages written in?", "CSS", "SQL", "C", "COBOL"),
    ("Which of these sorts by halves that are merged?", "merge sort", "bubble sort", "bogo sort", "counting sort"),
    ("Which language asks relational databases?", "SQL", "HTML", "XML", "YAML"),
    ("What does CPU stand for?", "central processing unit", "common print unit", "core power use", "copy unit"),
    ("Which sign begins a comment in Python?", "#", "//", "--", ";"),
)
SUMS = 88


@dataclass(frozen=True)
class KnownQuestion:
    """`answer` is a letter for one `with_choices`, else a whole number."""

    text: str
    answer: str
    with_choices: bool

    def is_right(self, reply: str) -> bool:
        """Return whether a reply has the answer: the first letter of a choice that stands alone, or the last number."""
        pattern = rf"\b[{LETTERS}]\b" if self.with_choices else r"-?\d+"
        found: list[str] = re.findall(pattern, reply.replace(",", ""))
        return bool(found) and found[0 if self.with_choices else -1] == self.answer


def question_set() -> list[KnownQuestion]:
    """Return all questions, always the same."""
    chance = random.Random(22)
    return [
        *(choice_question(number, *fact) for number, fact in enumerate(FACTS)),
        *(sum_question(chance) for _ in range(SUMS)),
    ]


def choice_question(number: int, text: str, right: str, *wrong: str) -> KnownQuestion:
    place = (5 * number + number // 4) % len(LETTERS)
    choices = [*wrong[:place], right, *wrong[place:]]
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True)]
    return KnownQuestion("\n".join([text, *lines, "Answer with the letter only."]), LETTERS[place], True)


def sum_question(chance: random.Random) -> KnownQuestion:
    left, right = chance.randint(2, 99), chance.randint(2, 99)
    word, result = chance.choice([("plus", left + right), ("minus", left - right), ("times", left * right)])
    return KnownQuestion(f"What is {left} {word} {right}? Answer with the number only.", str(result), False)
