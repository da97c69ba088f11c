"""The words that made-up records are made of. Several languages, so that nobody gets by with ASCII."""

from __future__ import annotations

REASONS = (
    "holiday",
    "sick leave",
    "training",
    "parental leave",
    "jury duty",
    "sabbatical",
    "unpaid leave",
    "Kur und Rehabilitation für Angehörige",
    "congé de formation à l'étranger",
    "omsorgspermisjon — små barn",
    "介護休暇",
)

CONTRACTS = (
    ("PERM", "Permanent"),
    ("FIX", "Fixed term"),
    ("TEMP", "Temporary replacement"),
    ("HOUR", "Paid by the hour"),
    ("APPR", "Lærling"),
    ("STUD", "Werkstudent:in"),
    ("VOL", "Bénévole"),
    ("ONCALL", "On call"),
)

QUALIFICATIONS = (
    ("AID", "First aid"),
    ("CPR", "Resuscitation"),
    ("FIRE", "Fire safety"),
    ("MED", "Administration of medicines"),
    ("LIFT", "Fork-lift truck"),
    ("DRV", "Führerschein Klasse C1E"),
    ("HYG", "Hygiène alimentaire"),
    ("INT", "Intensivpleie på nyfødte"),
    ("RAD", "放射線取扱主任者"),
)

EVIDENCE = ("certificate", "examination", "diploma", "supervised practice", "e-learning", "Prüfung", "attestation")

REMARKS = (
    "",
    "Seen in the original.",
    "Renewal is due before the summer.",
    "Approved with conditions: two shifts under supervision, then a talk with the ward's lead.",
    "Anerkennung aus Österreich, Übersetzung beglaubigt.",
    "Reçu par courriel ✓",
    'Name on the certificate: "Zoë Łukasiewicz-Núñez"',
)

DOCUMENTS = (
    ("certificate.pdf", "application/pdf"),
    ("scan 001.jpg", "image/jpeg"),
    ("Prüfungszeugnis.pdf", "application/pdf"),
    ("attestation_réussite.pdf", "application/pdf"),
    ("修了証.png", "image/png"),
)
