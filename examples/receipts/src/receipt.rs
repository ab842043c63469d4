//! The mail. The same event always gives the same message id, and a receipt is composed once: what is sent again is the
//! same mail, byte for byte, whatever this program's next version writes.

use std::fmt::Write as _;
use std::time::SystemTime;

use lettre::Address;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::event::{Skipped, Transfer};

/// A mail that is ready to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The header `Message-ID`, which a mail store recognizes a repetition by.
    pub(crate) message_id: String,
    /// The address that it goes to.
    pub(crate) recipient: String,
    /// The whole mail, headers included.
    pub(crate) message: Vec<u8>,
}

/// What all receipts share.
#[derive(Clone, Debug)]
pub(crate) struct Letterhead {
    from: Mailbox,
    /// The member of a transfer's `metadata` that holds the recipient's address.
    member: String,
}

impl Letterhead {
    pub(crate) const fn new(from: Mailbox, member: String) -> Self {
        Self { from, member }
    }

    /// Writes the receipt of a transfer.
    ///
    /// # Errors
    /// [`Skipped::NoRecipient`] and [`Skipped::BadRecipient`]; [`Skipped::Unreadable`] where no mail can be made of it.
    pub(crate) fn compose(&self, event: Uuid, at: OffsetDateTime, transfer: &Transfer) -> Result<Receipt, Skipped> {
        let metadata = transfer.metadata.as_ref();
        let recipient = metadata.and_then(|metadata| metadata.get(&self.member)).ok_or(Skipped::NoRecipient)?;
        let recipient: Address = recipient.parse().map_err(|_| Skipped::BadRecipient)?;
        // The word before the event's id is the effect's name: another consumer's mail about the same event is another mail.
        let message_id = format!("<receipt.{event}@{}>", self.from.email.domain());
        let amount = format_amount(transfer.amount, &transfer.currency);
        let mut text = format!("Amount:    {amount} {}\r\n", transfer.currency);
        if let Some(description) = &transfer.description {
            // Writing into a String cannot fail.
            let _ = write!(text, "For:       {description}\r\n");
        }
        let _ = write!(text, "Time:      {at}\r\nTransfer:  {}\r\n", transfer.id);
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, recipient.clone()))
            .subject(format!("Receipt: {amount} {}", transfer.currency))
            .date(SystemTime::from(at))
            .message_id(Some(message_id.clone()))
            // Nobody's absence note answers it (RFC 3834).
            .raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()))
            .header(ContentType::TEXT_PLAIN)
            .body(text)
            .map_err(|_| Skipped::Unreadable)?;
        Ok(Receipt { message_id, recipient: recipient.to_string(), message: message.formatted() })
    }
}

/// An amount of minor units with the currency's decimal point: 1250 is 12.50 in EUR and 1250 in JPY.
fn format_amount(minor_units: u64, currency: &str) -> String {
    // ISO 4217: two decimal places, with these exceptions.
    let places = match currency {
        "BIF" | "CLP" | "DJF" | "GNF" | "ISK" | "JPY" | "KMF" | "KRW" | "PYG" | "RWF" | "UGX" | "VND" | "VUV"
        | "XAF" | "XOF" | "XPF" => 0,
        "BHD" | "IQD" | "JOD" | "KWD" | "LYD" | "OMR" | "TND" => 3,
        "CLF" => 4,
        _ => 2,
    };
    // At least one digit before the point.
    let mut digits = format!("{minor_units:0>width$}", width = places + 1);
    if places > 0 {
        digits.insert(digits.len() - places, '.');
    }
    digits
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn compose(description: &str) -> Receipt {
        let transfer = Transfer {
            id: Uuid::from_u128(2),
            amount: 1250,
            currency: "EUR".to_owned(),
            description: Some(description.to_owned()),
            metadata: Some([("email".to_owned(), "ann@example.com".to_owned())].into()),
        };
        let letterhead = Letterhead::new("Shop <receipts@shop.example>".parse().unwrap(), "email".to_owned());
        letterhead.compose(Uuid::from_u128(1), datetime!(2026-01-02 03:04:05 UTC), &transfer).unwrap()
    }

    #[test]
    fn the_same_event_gives_the_same_mail() {
        let receipt = compose("Order 1001");
        assert_eq!(receipt, compose("Order 1001"));
        let text = String::from_utf8(receipt.message).unwrap();
        for line in [
            "From: Shop <receipts@shop.example>",
            "To: ann@example.com",
            "Subject: Receipt: 12.50 EUR",
            "Date: Fri, 02 Jan 2026 03:04:05 +0000",
            "Message-ID: <receipt.00000000-0000-0000-0000-000000000001@shop.example>",
            "Auto-Submitted: auto-generated",
            "For:       Order 1001",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn what_a_client_wrote_stays_in_the_body() {
        let text = String::from_utf8(compose("x\r\n.\r\nBcc: all@example.com\r\n\u{202e}é").message).unwrap();
        let (headers, _) = text.split_once("\r\n\r\n").unwrap();
        assert!(!headers.contains("Bcc"), "{headers}");
        assert!(text.is_ascii(), "no server has to take 8-bit mail: {text}");
    }

    #[test]
    fn amounts_have_their_currencys_decimal_point() {
        for (units, currency, text) in [
            (1250, "EUR", "12.50"),
            (5, "EUR", "0.05"),
            (1250, "JPY", "1250"),
            (1234, "KWD", "1.234"),
            (1, "CLF", "0.0001"),
            (9_007_199_254_740_991, "USD", "90071992547409.91"),
        ] {
            assert_eq!(format_amount(units, currency), text);
        }
    }
}
